"""One `config.json`, already parsed, read field by field.

Knows that the language model's fields may be nested (`text_config`), that `null` and a missing key mean the
same, and that vision and audio parts have fields of the same names which must not be read. Knows no files and
no rule of any model family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from kvtune.tokenization.errors import UnusableInputError

NESTED_TEXT_CONFIGS = ("text_config", "llm_config", "language_config")
_MAX_LAYERS = 10_000


@dataclass(frozen=True)
class ModelConfig:
    """The fields that decide the KV cache.

    Attributes:
        outer: the whole file.
        text: the language model's part; the same mapping when nothing is nested.
        where: the file's name for error lines.
    """

    outer: Mapping[str, object]
    text: Mapping[str, object]
    where: str | None = None

    @classmethod
    def parse(cls, document: object, where: str | None = None) -> ModelConfig:
        """Raises UnusableInputError unless `document` is a JSON object that names its architecture."""
        if not isinstance(document, dict):
            raise UnusableInputError(
                "not a model config",
                where=where,
                found=type(document).__name__,
                wanted="a JSON object as a hub's config.json",
            )
        outer = cast("Mapping[str, object]", document)
        nested = next((outer[key] for key in NESTED_TEXT_CONFIGS if isinstance(outer.get(key), dict)), None)
        text = cast("Mapping[str, object]", nested) if nested is not None else outer
        config = cls(outer, text, where)
        if not config.model_type:
            raise config.refusal(
                "model_type", "missing", "the name of the model family", "give the hub's config.json as it is"
            )
        return config

    @property
    def model_type(self) -> str:
        """The family's name; the nested config's own name where only that one is given."""
        for fields in (self.outer, self.text):
            value = fields.get("model_type")
            if isinstance(value, str) and value:
                return value
        return ""

    @property
    def architecture(self) -> str:
        """The first model class that the file names, or an empty string."""
        value = self.outer.get("architectures") or self.text.get("architectures")
        return value[0] if isinstance(value, list) and value and isinstance(value[0], str) else ""

    def get(self, *names: str) -> object:
        """The first of `names` that is given and not null, the language model's part first."""
        for fields in (self.text, self.outer):
            for name in names:
                if fields.get(name) is not None:
                    return fields[name]
        return None

    def integer(self, *names: str, default: int | None = None, minimum: int = 1) -> int:
        """A required count. Raises UnusableInputError where it is missing (and has no default) or no count."""
        value = self.get(*names)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.refusal(names[0], "missing", f"an integer of at least {minimum}")
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.refusal(names[0], _shown(value), f"an integer of at least {minimum}")
        return value

    def optional_integer(self, *names: str, minimum: int = 0) -> int | None:
        return None if self.get(*names) is None else self.integer(*names, minimum=minimum)

    def string(self, *names: str) -> str | None:
        value = self.get(*names)
        if value is None or isinstance(value, str):
            return value
        raise self.refusal(names[0], _shown(value), "a string")

    def strings(self, *names: str) -> list[str] | None:
        value = self.get(*names)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refusal(names[0], _shown(value), "a list of strings")
        return cast("list[str]", value)

    def integers(self, *names: str) -> list[int] | None:
        value = self.get(*names)
        if value is None:
            return None
        if not isinstance(value, list) or not all(
            isinstance(n, int) and not isinstance(n, bool) for n in value
        ):
            raise self.refusal(names[0], _shown(value), "a list of integers")
        return cast("list[int]", value)

    def section(self, name: str) -> ModelConfig:
        """A nested object of the language model's part (`linear_attn_config`), read the same way."""
        value = self.get(name)
        if not isinstance(value, dict):
            raise self.refusal(name, "missing" if value is None else _shown(value), "an object")
        fields = cast("Mapping[str, object]", value)
        return ModelConfig(fields, fields, self.where)

    @property
    def num_layers(self) -> int:
        """Hidden layers; where the count is left out, the length of the layer list."""
        if self.get("num_hidden_layers") is None:
            for name in ("layer_types", "layers_block_type"):
                kinds = self.strings(name)
                if kinds:
                    return len(kinds)
        count = self.integer("num_hidden_layers")
        if count > _MAX_LAYERS:
            raise self.refusal("num_hidden_layers", str(count), f"at most {_MAX_LAYERS}")
        return count

    @property
    def dtype(self) -> str:
        """The dtype of the weights, `bfloat16` where the file does not say."""
        return (self.string("dtype", "torch_dtype") or "bfloat16").removeprefix("torch.")

    @property
    def head_size(self) -> int:
        explicit = self.optional_integer("head_dim", minimum=1)
        if explicit is not None:
            return explicit
        heads = self.integer("num_attention_heads")
        hidden = self.integer("hidden_size")
        if hidden % heads:
            raise self.refusal("hidden_size", str(hidden), f"a multiple of num_attention_heads ({heads})")
        return hidden // heads

    @property
    def num_kv_heads(self) -> int:
        return self.integer("num_key_value_heads", default=self.integer("num_attention_heads"))

    def refusal(self, field: str, found: str, wanted: str, way_out: str | None = None) -> UnusableInputError:
        what = f"this {self.model_type or 'model'} config cannot be sized"
        way = way_out or "give the sizes with --groups, or a start-up log with --startup-log"
        return UnusableInputError(
            what, where=self.where, field=field, found=found, wanted=wanted, way_out=way
        )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
