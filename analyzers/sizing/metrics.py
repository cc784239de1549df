"""What a server's `/metrics` page says about its sizes: the labels that can be trusted, and the stale ones by name.

The server exports every attribute of its cache configuration as a text label of one gauge. Some are set by worker
processes after the gauge's process took its copy, so they show what was asked for, not what is. Knows the page's
text; neither how it was fetched nor what the values mean for hits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvtune.tokenization.errors import UnusableInputError

CONFIG_GAUGE = "vllm:cache_config_info"
STALE_LABELS = {
    "mamba_block_size": "the block before it was aligned in the workers",
    "mamba_page_size_padded": "not known outside the workers",
    "hash_block_size": "not known outside the workers",
    "cache_hit_alignment_tokens": "not known outside the workers",
}
"""Labels that look like answers and are not, with why."""

TRUSTED_LABELS = (
    "block_size",
    "effective_attention_block_size",
    "num_gpu_blocks",
    "kv_cache_size_tokens",
    "kv_cache_max_concurrency",
    "enable_prefix_caching",
    "prefix_match_unit",
    "prefix_cache_retention_interval",
    "prefix_caching_hash_algo",
    "mamba_cache_mode",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "cache_dtype",
    "enable_mamba_shared_prefix_checkpoint",
)
COUNTERS = {
    "vllm:prefix_cache_queries_total": "prefix_cache_queries",
    "vllm:prefix_cache_hits_total": "prefix_cache_hits",
}
LENGTHS = "vllm:request_prompt_tokens_bucket"
MAX_LINE_CHARS = 65_536
_LABEL = re.compile(r'(\w{1,80})="((?:[^"\\]|\\.){0,400})"')
_SAMPLE = re.compile(r"^(vllm:\w{1,80})\{(.*)\} (\S{1,40})")


@dataclass(frozen=True)
class ServerMetrics:
    """One engine's trusted labels.

    Attributes:
        labels: trusted labels, as text; `None` where the server's setting is unset. stale: untrusted ones that look
            like answers, with their text.
        line: of the gauge, 1-based. engines: how many engines the page shows.
        prefix_cache_queries, prefix_cache_hits: tokens, summed over engines; None where the page has none.
        prompt_lengths: (tokens, requests with at most that many), ascending, the last bound infinite; summed over
            engines, empty where the page has none.
        warnings: stale labels, and engines that disagree.
    """

    labels: dict[str, str]
    stale: dict[str, str]
    line: int
    engines: int
    prefix_cache_queries: int | None
    prefix_cache_hits: int | None
    warnings: tuple[str, ...]
    where: str | None = None
    prompt_lengths: tuple[tuple[float, int], ...] = ()

    def number(self, name: str) -> int | None:
        """A label as a count; None where it is missing or no count."""
        text = self.labels.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else None

    def flag(self, name: str) -> bool | None:
        return {"True": True, "False": False}.get(self.labels.get(name, ""))

    def place(self) -> str:
        return f"{self.where}:{self.line}" if self.where else f"metrics line {self.line}"


def read_metrics(lines: Iterable[str], where: str | None = None) -> ServerMetrics:
    """Read a Prometheus page.

    Raises:
        UnusableInputError: the page has no cache configuration of vLLM.
    """
    gauges: list[tuple[int, dict[str, str]]] = []
    counters: dict[str, int] = {}
    lengths: dict[float, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.startswith("vllm:"):
            continue
        sample = _SAMPLE.match(line[:MAX_LINE_CHARS])
        if sample is None:
            continue
        if sample[1] == CONFIG_GAUGE:
            gauges.append((number, dict(_LABEL.findall(sample[2]))))
        elif sample[1] in COUNTERS:
            name = COUNTERS[sample[1]]
            counters[name] = counters.get(name, 0) + _count(sample[3])
        elif sample[1] == LENGTHS:
            bound = _bound(dict(_LABEL.findall(sample[2])).get("le", ""))
            if bound is not None:
                lengths[bound] = lengths.get(bound, 0) + _count(sample[3])
    if not gauges:
        raise UnusableInputError(
            "no cache configuration of vLLM on this page",
            where=where,
            wanted=f"a line that begins with {CONFIG_GAUGE}",
            way_out="give the server's /metrics as it is",
        )
    ascending = tuple(sorted(lengths.items()))
    whole = ascending if ascending and math.isinf(ascending[-1][0]) else ()
    return replace(_result(gauges, counters, where), prompt_lengths=whole)


def _bound(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) or value < 0 else value


def _result(
    gauges: list[tuple[int, dict[str, str]]], counters: dict[str, int], where: str | None
) -> ServerMetrics:
    line, first = gauges[0]
    stale = {name: first[name] for name in STALE_LABELS if first.get(name, "None") not in ("None", "")}
    warnings = [
        f"label {name}={value} is stale: {STALE_LABELS[name]}; it is not used"
        for name, value in stale.items()
    ]
    for name in ("block_size", "prefix_match_unit", "num_gpu_blocks"):
        values = sorted({labels.get(name, "") for _, labels in gauges})
        if len(values) > 1:
            warnings.append(
                f"the engines on this page differ in {name} ({', '.join(values)}): the first is used"
            )
    return ServerMetrics(
        labels={name: first[name] for name in TRUSTED_LABELS if first.get(name)},
        stale=stale,
        line=line,
        engines=len(gauges),
        prefix_cache_queries=counters.get("prefix_cache_queries"),
        prefix_cache_hits=counters.get("prefix_cache_hits"),
        warnings=tuple(warnings),
        where=where,
    )


def _count(text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        return 0
    return int(value) if 0 <= value < 1e18 else 0
