"""The metrics page: labels that can be trusted, stale ones by name, engines that differ."""

from __future__ import annotations

import pytest

from kvtune.analyzers.sizing.metrics import ServerMetrics, read_metrics
from kvtune.tokenization.errors import UnusableInputError

LABELS = {
    "block_size": "1552",
    "cache_dtype": "fp8",
    "effective_attention_block_size": "1552",
    "enable_prefix_caching": "True",
    "engine": "0",
    "hash_block_size": "None",
    "mamba_block_size": "16",
    "mamba_cache_mode": "align",
    "num_gpu_blocks": "1760",
    "prefix_cache_retention_interval": "0",
    "prefix_match_unit": "None",
}


def page(*engines: dict[str, str], extra: str = "") -> ServerMetrics:
    lines = [
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig",
        "# TYPE vllm:cache_config_info gauge",
    ]
    for labels in engines:
        inside = ",".join(f'{name}="{value}"' for name, value in labels.items())
        lines.append(f"vllm:cache_config_info{{{inside}}} 1.0")
    return read_metrics([*lines, *extra.splitlines()], "metrics.txt")


def test_trusted_labels_and_counters() -> None:
    counters = (
        'vllm:prefix_cache_queries_total{engine="0",model_name="m"} 8.01405e+05\n'
        'vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1568.0\n'
        'vllm:num_requests_running{engine="0"} 3.0'
    )
    found = page(LABELS, extra=counters)
    assert (found.number("block_size"), found.number("num_gpu_blocks")) == (1552, 1760)
    assert found.number("prefix_match_unit") is None
    assert found.flag("enable_prefix_caching") is True
    assert (found.prefix_cache_queries, found.prefix_cache_hits) == (801_405, 1_568)
    assert found.place() == "metrics.txt:3"


def test_stale_labels_are_named_and_kept_apart() -> None:
    found = page(LABELS)
    assert found.stale == {"mamba_block_size": "16"}
    assert "mamba_block_size" not in found.labels
    assert found.warnings == (
        "label mamba_block_size=16 is stale: the block before it was aligned in the workers; it is not used",
    )


def test_engines_that_differ_are_a_warning() -> None:
    found = page(LABELS, LABELS | {"engine": "1", "num_gpu_blocks": "1750"})
    assert found.engines == 2
    assert (
        "the engines on this page differ in num_gpu_blocks (1750, 1760): the first is used" in found.warnings
    )


@pytest.mark.parametrize("text", ["", "# HELP x\nhttp_requests_total 5", "<html>Not Found</html>"])
def test_a_page_of_something_else_is_one_clear_error(text: str) -> None:
    with pytest.raises(UnusableInputError, match="no cache configuration of vLLM on this page"):
        read_metrics(text.splitlines(), "metrics.txt")


@pytest.mark.parametrize("value", ["nan", "-1", "1e400", "x"])
def test_counters_that_are_no_counts_are_zero(value: str) -> None:
    found = page(LABELS, extra=f'vllm:prefix_cache_hits_total{{engine="0"}} {value}')
    assert found.prefix_cache_hits == 0
