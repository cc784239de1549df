"""The start-up messages that say something about sizes, by wording: vLLM 0.19 to 0.33.

A pattern names its facts by group: `(?P<attention_block_size>\\d+)` is the fact of that name. Wordings that changed
stand side by side, each with its releases. Knows wordings; not which message counts when several disagree.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, cast

FactName = Literal[
    "version",
    "model",
    "attention_block_size",
    "padding_pct",
    "kv_cache_block_size",
    "group_block_sizes",
    "scheduler_block_size",
    "padding_layers",
    "padding_layers_pct",
    "mamba_cache_mode",
    "coarse_managers",
    "kv_cache_tokens",
    "max_concurrency",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "long_prefill_token_threshold",
    "enable_prefix_caching",
    "kv_cache_dtype",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "dtype",
    "tensor_parallel_size",
    "data_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "block_size",
    "prefix_match_unit",
    "retention_interval",
    "speculative_method",
    "num_speculative_tokens",
    "kv_connector",
    "num_gpu_blocks",
    "gdn_prefill_backend",
    "attention_backend",
    "hybrid_manager_disabled",
    "no_draft_group",
    "dense_beside_drafter",
    "capacity_in_one_line",
    "arguments_without_caching",
    "refused_unit",
    "prefix_cache_hit_pct",
]
Value = int | float | str | bool | tuple[int, ...] | tuple[str, ...]
Start = Literal["", "banner", "arguments", "engine"]

STARTS: frozenset[Start] = frozenset({"banner", "arguments"})
_MAX_LIST = 256


@dataclass(frozen=True)
class Pattern:
    """One wording.

    Attributes:
        trigger: literal text that every such line holds, tried first.
        regex: searched anywhere in the line, since prefixes vary.
        start: what of a start this line marks. resolves: the line reports resolved sizes.
    """

    trigger: str
    regex: re.Pattern[str]
    start: Start = ""
    resolves: bool = False
    extra: Callable[[str], dict[FactName, Value]] | None = None
    constant: dict[FactName, Value] = field(default_factory=dict)

    def find(self, text: str) -> re.Match[str] | None:
        return self.regex.search(text)

    def facts(self, match: re.Match[str]) -> dict[FactName, Value]:
        """The facts of a line that matched; a number too long to be a size is none."""
        facts: dict[FactName, Value] = dict(self.constant)
        for name, text in match.groupdict().items():
            value = _converted(name, text)
            if value is not None:
                facts[cast("FactName", name)] = value
        if self.extra is not None:
            facts.update(self.extra(match.string[match.end() :]))
        return facts


_INTEGERS = frozenset(
    {
        "attention_block_size",
        "kv_cache_block_size",
        "scheduler_block_size",
        "padding_layers",
        "kv_cache_tokens",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "long_prefill_token_threshold",
        "tensor_parallel_size",
        "data_parallel_size",
        "pipeline_parallel_size",
        "decode_context_parallel_size",
        "block_size",
        "prefix_match_unit",
        "retention_interval",
        "num_speculative_tokens",
        "num_gpu_blocks",
        "refused_unit",
    }
)
_FRACTIONS = frozenset({"padding_pct", "padding_layers_pct", "max_concurrency", "prefix_cache_hit_pct"})
_FLAGS = frozenset({"enable_prefix_caching"})


def _converted(name: str, text: str | None) -> Value | None:
    if text is None:
        return None
    if name in _INTEGERS:
        digits = text.replace(",", "")
        return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 12 else None
    if name in _FRACTIONS:
        return float(text) if len(text) <= 15 else None
    if name in _FLAGS:
        return {"True": True, "False": False}.get(text)
    if name == "group_block_sizes":
        sizes = tuple(int(number) for number in re.findall(r"\d{1,12}", text)[:_MAX_LIST])
        return sizes or None
    if name == "coarse_managers":
        return tuple(re.findall(r"[A-Za-z]\w{0,60}", text)[:_MAX_LIST])
    cleaned = "".join(char for char in text.strip("'\"") if char.isprintable())
    return cleaned[:200] or None


_ARGUMENTS: dict[str, FactName] = {
    "model_tag": "model",
    "model": "model",
    "tensor_parallel_size": "tensor_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "decode_context_parallel_size": "decode_context_parallel_size",
    "block_size": "block_size",
    "prefix_match_unit": "prefix_match_unit",
    "prefix_cache_retention_interval": "retention_interval",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "enable_prefix_caching": "enable_prefix_caching",
    "kv_cache_dtype": "kv_cache_dtype",
    "mamba_cache_dtype": "mamba_cache_dtype",
    "mamba_cache_mode": "mamba_cache_mode",
    "mamba_ssm_cache_dtype": "mamba_ssm_cache_dtype",
    "num_gpu_blocks_override": "num_gpu_blocks",
    "attention_backend": "attention_backend",
    "gdn_prefill_backend": "gdn_prefill_backend",
}
"""Keys of the `non-default args` line. `max_model_len` is left to the engine's own line, which has it resolved."""

_ARGUMENT = re.compile(r"'(\w{1,60})': ('[^']{0,300}'|[\w.+-]{1,40})")
_SETTING = re.compile(r"\b(\w{1,60})=('[^']{0,300}'|[\w.+-]{1,40})")
_SPECULATIVE = re.compile(r"speculative_config['\"]?[:=] ?(?:SpeculativeConfig\(|\{)([^)}]{0,2000})")
_CONNECTOR = re.compile(r"kv_connector['\"]?[:=] ?'([^']{1,100})'")
_SETTINGS: dict[str, FactName] = {
    "model": "model",
    "dtype": "dtype",
    "max_seq_len": "max_model_len",
    "tensor_parallel_size": "tensor_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "decode_context_parallel_size": "decode_context_parallel_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching",
}
"""Keys of the engine's own configuration line."""


def _arguments(text: str) -> dict[FactName, Value]:
    facts = _pairs(text, _ARGUMENT, _ARGUMENTS) | _speculative(text)
    if "enable_prefix_caching" not in facts:
        facts["arguments_without_caching"] = True
    return facts


def _settings(text: str) -> dict[FactName, Value]:
    return _pairs(text, _SETTING, _SETTINGS) | _speculative(text)


def _pairs(text: str, regex: re.Pattern[str], names: dict[str, FactName]) -> dict[FactName, Value]:
    facts: dict[FactName, Value] = {}
    for match in regex.finditer(text):
        name = names.get(match[1])
        if name is None or name in facts or match[2] == "None":
            continue
        value = _converted(name, match[2].removeprefix("torch."))
        if value is not None:
            facts[name] = value
    return facts


def _speculative(text: str) -> dict[FactName, Value]:
    facts: dict[FactName, Value] = {}
    if found := _SPECULATIVE.search(text):
        method = re.search(r"method['\"]?[:=] ?'(\w{1,40})'", found[1])
        tokens = re.search(r"num_spec(?:ulative)?_tokens['\"]?[:=] ?(\d{1,4})\b", found[1])
        if method:
            facts["speculative_method"] = method[1]
        if tokens:
            facts["num_speculative_tokens"] = int(tokens[1])
    if found := _CONNECTOR.search(text):
        facts["kv_connector"] = found[1]
    return facts


def _pattern(trigger: str, regex: str, **fields: object) -> Pattern:
    return Pattern(trigger, re.compile(regex), **fields)  # type: ignore[arg-type]


_NUMBER = r"[\d,]{1,20}"

PATTERNS: tuple[Pattern, ...] = (
    _pattern("server version", r"vLLM (?:API )?server version (?P<version>[\w.+-]{1,60})", start="banner"),
    # The banner with the logo, from 0.2x on: `version 0.33.0` and `model org/name` on lines of their own.
    _pattern("█", r"█\s+version (?P<version>\d[\w.+-]{0,60})", start="banner"),
    _pattern("█", r"█\s+model   (?P<model>\S{1,200})"),
    _pattern("non-default args", r"non-default args: ", start="arguments", extra=_arguments),
    _pattern(
        "LLM engine (v",
        r"Initializing a V1 LLM engine \(v(?P<version>[\w.+-]{1,60})\) with config: ",
        start="engine",
        extra=_settings,
    ),
    _pattern(
        "attention block size",
        r"[Ss]etting attention block size to (?P<attention_block_size>\d+) tokens",
        resolves=True,
    ),
    _pattern("Padding mamba page", r"Padding mamba page size by (?P<padding_pct>\d+\.\d+)%", resolves=True),
    _pattern("kv cache block size", r"Setting kv cache block size to (?P<kv_cache_block_size>\d+) for"),
    # A list in 0.30 and 0.31, a tuple from 0.32 on.
    _pattern(
        "group sizes", r"kv cache group sizes [\[(](?P<group_block_sizes>[\d, ]{1,4000})[\])]", resolves=True
    ),
    _pattern("kv lcm block sizes", r"kv lcm block sizes (?P<scheduler_block_size>\d+)", resolves=True),
    _pattern(
        "padding layers",
        r"Add (?P<padding_layers>\d+) padding layers, may waste at most (?P<padding_layers_pct>\d+\.\d+)%",
        resolves=True,
    ),
    _pattern(
        "Mamba cache mode is set to",
        r"Mamba cache mode is set to '(?P<mamba_cache_mode>align|all|none)'",
    ),
    _pattern(
        "Prefix caching in Mamba", r"Prefix caching in Mamba cache '(?P<mamba_cache_mode>align|all)' mode"
    ),
    _pattern(
        "Disabling fine-grained",
        r"Disabling fine-grained prefix-cache hits because .{0,80}block-aligned lookups: (?P<coarse_managers>.{1,400})",
        resolves=True,
    ),
    # Two lines up to 0.27, one from 0.28 on; the device is named from 0.30 on.
    _pattern("KV cache size: ", rf"KV cache size: (?P<kv_cache_tokens>{_NUMBER}) tokens", resolves=True),
    _pattern(
        "Maximum concurrency for",
        rf"Maximum concurrency for (?P<max_model_len>{_NUMBER}) tokens per request: "
        r"(?P<max_concurrency>\d+\.\d+)x",
        resolves=True,
    ),
    _pattern(
        "Chunked prefill is enabled",
        r"Chunked prefill is enabled with max_num_batched_tokens=(?P<max_num_batched_tokens>\d+)",
    ),
    _pattern("Overriding num_gpu_blocks", r"with num_gpu_blocks_override=(?P<num_gpu_blocks>\d+)"),
    _pattern("num_gpu_blocks is: ", r"num_gpu_blocks is: (?P<num_gpu_blocks>\d+)", resolves=True),
    _pattern(
        "Hybrid KV cache manager is disabled",
        r"Hybrid KV cache manager is disabled for this hybrid model",
        constant={"hybrid_manager_disabled": True},
    ),
    _pattern(
        "no KV cache group",
        r"no KV cache group could be identified as the draft model",
        constant={"no_draft_group": True},
    ),
    _pattern(
        "dense checkpointing",
        r"defaulting prefix_cache_retention_interval to dense checkpointing",
        constant={"dense_beside_drafter": True},
    ),
    _pattern(
        "Maximum concurrency for",
        rf"KV cache size: {_NUMBER} tokens, Maximum concurrency for {_NUMBER} tokens",
        constant={"capacity_in_one_line": True},
    ),
    _pattern("GDN prefill kernel", r"Using (?P<gdn_prefill_backend>[\w/ ]{1,40}) GDN prefill kernel"),
    _pattern(
        "mamba_ssm_cache_dtype", r"Updating mamba_ssm_cache_dtype to '(?P<mamba_ssm_cache_dtype>\w{1,20})'"
    ),
    _pattern("prefix_match_unit=", r"Invalid prefix_match_unit=(?P<refused_unit>\d+);"),
    _pattern("Prefix cache hit rate", r"Prefix cache hit rate: (?P<prefix_cache_hit_pct>\d+\.\d+)%"),
)
"""Tried in this order on every line; a line may match several."""
