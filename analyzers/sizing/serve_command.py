"""A whole `vllm serve` command: the flags that decide sizes, and the names of those that were passed over.

    VLLM_X=1 vllm serve MODEL --kv-cache-dtype fp8 -tp 2 --speculative-config '{"method": "mtp", ...}'

Takes words as a shell gives them. Dashes and underscores are the same, values may follow `=`, JSON options may be
given key by key (`--speculative-config.method mtp`), as the server's own parser has it. Knows flags; what they do
to sizes is `model_sizes`' business.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.tokenization.errors import UnusableInputError

_ALIASES = {
    "-tp": "tensor-parallel-size",
    "-dcp": "decode-context-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-sc": "speculative-config",
    "-ac": "attention-config",
}
_MAX_WORDS = 2_000
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_RETENTION_VARIABLE = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
"""Before 0.29 the retention interval was an environment variable."""


@dataclass(frozen=True)
class ServeCommand:
    """A serve command, read.

    Attributes:
        model: folder or hub id; None where the command names none.
        flags: those that decide sizes.
        words: the command cut down to them, fit to be shown: keys and tokens of a server stay out of reports.
        ignored: names of the flags that were passed over: they do not decide sizes, or are not known.
        template_kwargs: variables that chat templates get from the server (`--default-chat-template-kwargs`).
        excludes_tools: whether requests with `tool_choice: none` are rendered without their tools.
    """

    model: str | None
    flags: ServeFlags
    words: tuple[str, ...]
    ignored: tuple[str, ...]
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    excludes_tools: bool = False


def parse_serve_command(words: Sequence[str], base: ServeFlags | None = None) -> ServeCommand:
    """Read the words of a command, over `base`.

    Raises:
        UnusableInputError: no serve command, or a flag that is known and has an unusable value.
    """
    if len(words) > _MAX_WORDS:
        raise _bad("serve command", f"{len(words)} words", f"at most {_MAX_WORDS}")
    reader = _Reader(flags=base or ServeFlags())
    reader.read(list(words))
    model = () if reader.model is None else (reader.model,)
    shown = (*reader.variables, "vllm", "serve", *model, *reader.kept)
    return ServeCommand(
        reader.model,
        reader.flags,
        shown,
        tuple(reader.ignored),
        reader.template_kwargs,
        reader.excludes_tools,
    )


@dataclass
class _Reader:
    flags: ServeFlags
    model: str | None = None
    variables: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    excludes_tools: bool = False

    def read(self, words: list[str]) -> None:
        place = self._skip_to_arguments(words)
        while place < len(words):
            word = words[place]
            place += 1
            if not word.startswith("-") or word == "-":
                self.model = self.model or word  # a further one is one more value of the flag before
                continue
            name, equals, value = word.partition("=")
            name = _ALIASES.get(name, name.lstrip("-")).replace("_", "-")
            if not equals and not _is_switch(name):
                if place < len(words) and (not words[place].startswith("-") or _is_number(words[place])):
                    value, place = words[place], place + 1
                elif name in _VALUES:
                    raise _bad(f"--{name}", "nothing behind it", "a value")
            self._take(name, value)

    def _skip_to_arguments(self, words: list[str]) -> int:
        """Past `NAME=value` variables and the program: `vllm serve`, or Python and the server's module."""
        place = 0
        while place < len(words) and _is_variable(words[place]):
            name, _, value = words[place].partition("=")
            if name == _RETENTION_VARIABLE:
                self._retention(value)
                self.variables.append(words[place])
            place += 1
        for index in range(place, min(len(words), place + 64)):
            if words[index] == "serve" or words[index].endswith("openai.api_server"):
                return index + 1
        if place < len(words) and words[place].startswith("-"):
            return place
        found = words[place][:40] if place < len(words) else "nothing"
        raise _bad("serve command", found, "vllm serve MODEL --flags, as the server was started")

    def _take(self, name: str, value: str) -> None:
        if name == "model" and value:
            self.model = value
            return
        head, dot, key = name.partition(".")
        if head == _TEMPLATE_KWARGS:
            self.template_kwargs |= {key: _literal(value)} if dot else _json_object(f"--{name}", value)
            self.kept += [f"--{name}", value]
        elif name.removeprefix("no-") == _EXCLUDES_TOOLS:
            self.excludes_tools = name == _EXCLUDES_TOOLS
            self.kept.append(f"--{name}")
        elif dot and head in _OBJECTS:
            self._object(head, {key: _literal(value)})
        elif name in _OBJECTS:
            self._object(name, _json_object(f"--{name}", value))
        elif name == "prefix-cache-retention-interval":
            self._retention(value)
            self.kept += [f"--{name}", value]
        elif name in _FIELDS:
            field_name, convert = _FIELDS[name]
            self._set({field_name: convert(f"--{name}", value)})
            self.kept += [f"--{name}", value]
        elif name.removeprefix("no-") in _BOOLEANS:
            field_name = _BOOLEANS[name.removeprefix("no-")]
            on = not name.startswith("no-") and value.lower() not in ("false", "0")
            self._set({field_name: on})
            self.kept.append(f"--{name}" if on or name.startswith("no-") else f"--no-{name}")
        else:
            self.ignored.append(f"--{name}"[:80])

    def _retention(self, value: str) -> None:
        """An empty value or `None` is dense."""
        interval = (
            None if value in ("", "None", "none") else _count("--prefix-cache-retention-interval", value)
        )
        self._set({"retention_interval": interval, "retention_given": True})

    def _object(self, name: str, values: dict[str, Any]) -> None:
        changes: dict[str, Any] = {}
        known: dict[str, Any] = {}
        for key, value in values.items():
            target = _OBJECTS[name].get(key.replace("-", "_"))
            if target is None:
                continue
            kind = _OBJECT_TYPES[target]
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise _bad(f"--{name}", f"{key}={value!r}"[:60], f"{key} as {kind.__name__}")
            changes[target] = known[key] = value
        self._set(changes)
        self.kept += [f"--{name}", json.dumps(known)]

    def _set(self, changes: dict[str, Any]) -> None:
        self.flags = replace(self.flags, **changes)


def _count(option: str, text: str) -> int:
    """A count as the server reads it: `8192`, `128k` (thousands), `1K` (1,024s), `1.5k`."""
    number, scale = (text[:-1], _SUFFIXES[text[-1:]]) if text[-1:] in _SUFFIXES else (text, 1)
    whole, dot, part = number.partition(".")
    digits = whole + part
    if len(digits) > 12 or not (digits.isascii() and digits.isdigit()) or (dot and scale == 1):
        raise _bad(option, repr(text[:40]), "a count such as 8192, 128k or 1K")
    return int(float(number) * scale)


def _length(option: str, text: str) -> int | None:
    return None if text in ("auto", "-1") else _count(option, text)


def _word(option: str, text: str) -> str:
    if not text or len(text) > 200:
        raise _bad(option, repr(text[:40]), "a name")
    return text


def _fraction(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise _bad(option, repr(text[:40]), "a number from 0 on and below 1")
    return value


def _mode(option: str, text: str) -> str:
    if text not in ("align", "all", "none"):
        raise _bad(option, repr(text[:40]), "align, all or none")
    return text


_FIELDS: dict[str, tuple[str, Callable[[str, str], object]]] = {
    "dtype": ("dtype", _word),
    "kv-cache-dtype": ("kv_cache_dtype", _word),
    "mamba-cache-dtype": ("mamba_cache_dtype", _word),
    "mamba-ssm-cache-dtype": ("mamba_ssm_cache_dtype", _word),
    "mamba-cache-mode": ("mamba_cache_mode", _mode),
    "mamba-block-size": ("mamba_block_size", _count),
    "block-size": ("block_size", _count),
    "tensor-parallel-size": ("tensor_parallel_size", _count),
    "data-parallel-size": ("data_parallel_size", _count),
    "pipeline-parallel-size": ("pipeline_parallel_size", _count),
    "decode-context-parallel-size": ("decode_context_parallel_size", _count),
    "attention-backend": ("attention_backend", _word),
    "gdn-prefill-backend": ("gdn_prefill_backend", _word),
    "prefix-match-unit": ("prefix_match_unit", _count),
    "max-model-len": ("max_model_len", _length),
    "max-num-batched-tokens": ("max_num_batched_tokens", _count),
    "max-num-seqs": ("max_num_seqs", _count),
    "long-prefill-token-threshold": ("long_prefill_token_threshold", _count),
    "num-gpu-blocks-override": ("num_gpu_blocks", _count),
    "prefix-caching-hash-algo": ("hash_algo", _word),
    "watermark": ("watermark", _fraction),
}
_BOOLEANS = {
    "enable-prefix-caching": "enable_prefix_caching",
    "disable-hybrid-kv-cache-manager": "disable_hybrid_kv_cache_manager",
    "enable-expert-parallel": "expert_parallel",
    "mamba-align-single-block-prefill": "mamba_align_single_block_prefill",
    "enable-mamba-shared-prefix-checkpoint": "mamba_shared_prefix_checkpoint",
    "enable-mamba-fine-grained-prefix-cache": "mamba_shared_prefix_checkpoint",
}
_OBJECTS: dict[str, dict[str, str]] = {
    "speculative-config": {
        "method": "speculative_method",
        "num_speculative_tokens": "num_speculative_tokens",
        "disable_lookahead_block_hashes": "disable_lookahead_block_hashes",
        "disable_eagle_block_drop": "disable_eagle_block_drop",
        "parallel_drafting": "parallel_drafting",
    },
    "kv-transfer-config": {"kv_connector": "kv_connector"},
    "attention-config": {"backend": "attention_backend"},
}
_OBJECT_TYPES: dict[str, type] = {
    "speculative_method": str,
    "num_speculative_tokens": int,
    "disable_lookahead_block_hashes": bool,
    "disable_eagle_block_drop": bool,
    "parallel_drafting": bool,
    "kv_connector": str,
    "attention_backend": str,
}
_TEMPLATE_KWARGS = "default-chat-template-kwargs"
_EXCLUDES_TOOLS = "exclude-tools-when-tool-choice-none"
_VALUES = frozenset({*_FIELDS, *_OBJECTS, "model", "prefix-cache-retention-interval", _TEMPLATE_KWARGS})
_SWITCHES = frozenset(
    {
        *_BOOLEANS,
        _EXCLUDES_TOOLS,
        "trust-remote-code",
        "enforce-eager",
        "async-scheduling",
        "skip-tokenizer-init",
        "headless",
        "language-model-only",
    }
)
_SWITCH_PREFIXES = ("enable-", "disable-", "no-", "return-", "skip-", "use-")


def _is_switch(name: str) -> bool:
    """Whether no value follows a flag, as far as its name tells."""
    return name not in _VALUES and (name in _SWITCHES or name.startswith(_SWITCH_PREFIXES))


def _is_variable(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()


def _is_number(word: str) -> bool:
    return word.lstrip("-").replace(".", "", 1).isdigit()


def _literal(text: str) -> object:
    """The value of a dotted key: JSON where it is JSON, else the text itself."""
    if len(text) > 10_000:
        return text
    try:
        return cast("object", json.loads(text))
    except (ValueError, RecursionError):
        return text


def _json_object(option: str, text: str) -> dict[str, Any]:
    value = _literal(text)
    if not isinstance(value, dict):
        raise _bad(option, repr(text[:40]), "a JSON object")
    return value


def _bad(option: str, found: str, wanted: str) -> UnusableInputError:
    return UnusableInputError("is unusable", field=option, found=found, wanted=wanted)
