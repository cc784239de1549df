"""`ConfigFields`: checked access to one `config.json`, and the parts that model families have in common.

Every size is a positive integer or the error says which field is not. Knows field names that families share; not
which layers a family has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from kvtune.gpu_probe.engine.spec import Activation, Attention, Block, ModelSpec
from kvtune.tokenization.errors import UnusableInputError

Config = Mapping[str, Any]


class ConfigFields:
    """Checked access to the fields of one config: every size is a positive integer or the error says where."""

    def __init__(self, config: Config, where: str) -> None:
        self.config = config
        self.where = where

    def size(self, name: str, default: int | None = None) -> int:
        value = self.config.get(name)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
            raise self.refuse(name, value, "a positive integer")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.config.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(name, value, "a number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.config.get(name)
        return default if value is None else bool(value)

    def names(self, name: str) -> list[str] | None:
        value = self.config.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refuse(name, value, "a list of layer types")
        return value

    def indices(self, name: str) -> set[int]:
        value = self.config.get(name) or []
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            raise self.refuse(name, value, "a list of layer numbers")
        return set(value)

    def refuse(self, name: str, value: object, wanted: str) -> UnusableInputError:
        return UnusableInputError(
            "cannot be used", where=self.where, field=name, found=repr(value)[:60], wanted=wanted
        )

    def lacks(self, what: str, field: str) -> UnusableInputError:
        return UnusableInputError(
            f"the bundled engine lacks {what}",
            where=self.where,
            field=field,
            way_out="validate on a server with --serve or --endpoint",
        )

    def activation(self, *names: str, default: str = "silu") -> Activation:
        value = next((self.config[name] for name in names if self.config.get(name)), default)
        known = {"silu": "silu", "swish": "silu", "relu2": "relu2", "gelu_pytorch_tanh": "gelu_tanh"}
        if value not in known:
            raise self.lacks(f"the activation {value!r}"[:60], names[0])
        return cast(Activation, known[value])

    def rope(self, name: str, default: Any) -> Any:
        """A rotary parameter, from the nested field of newer configs or the flat ones of older."""
        nested = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        nested = nested.get("full_attention", nested) if isinstance(nested, Mapping) else {}
        value = nested.get(name) or self.config.get(name) or default
        if isinstance(default, float) and isinstance(value, int):
            return float(value)
        if type(value) is not type(default):
            raise self.refuse(name, value, type(default).__name__)
        return value

    def attention(
        self, partial_rotary_factor: float = 1.0, rope_theta: float = 10000.0, **changes: Any
    ) -> Attention:
        """The attention block that most families share; the rotary arguments are the family's defaults.

        `changes` override fields of `Attention`.
        """
        heads = self.size("num_attention_heads")
        head_dim = self.size("head_dim", self.size("hidden_size") // heads)
        partial = self.rope("partial_rotary_factor", partial_rotary_factor)
        fields: dict[str, Any] = {
            "num_heads": heads,
            "num_kv_heads": self.size("num_key_value_heads", heads),
            "head_dim": head_dim,
            "scale": head_dim**-0.5,
            "rotary_dim": int(head_dim * partial) // 2 * 2,
            "rope_theta": self.rope("rope_theta", rope_theta),
            "bias": self.flag("attention_bias"),
        }
        built = Attention(**{**fields, **changes})
        if built.num_heads % built.num_kv_heads:
            raise self.refuse("num_key_value_heads", built.num_kv_heads, f"a divisor of {built.num_heads}")
        return built

    def spec(self, family: str, blocks: Iterator[Block], **changes: Any) -> ModelSpec:
        """The whole decoder; `changes` override fields of `ModelSpec`."""
        rope_type = self.rope("rope_type", self.rope("type", "default"))
        unfaithful = () if rope_type == "default" else (f"rope_type {rope_type[:40]}",)
        fields: dict[str, Any] = {
            "hidden_size": self.size("hidden_size"),
            "vocab_size": self.size("vocab_size", 32000),
            "norm_eps": self.number("rms_norm_eps", 1e-6),
            "tied_head": self.flag("tie_word_embeddings"),
            "unfaithful": unfaithful,
        }
        return ModelSpec(family=family, blocks=tuple(blocks), **{**fields, **changes})
