"""What a metrics page tells of the traffic, worked by hand."""

from __future__ import annotations

import pytest

from kvtune.analyzers.sizing.metrics import ServerMetrics, read_metrics
from kvtune.analyzers.sizing.traffic import traffic_of

GAUGE = 'vllm:cache_config_info{block_size="528",num_gpu_blocks="100",prefix_match_unit="None"} 1.0'


def page(*lines: str) -> ServerMetrics:
    return read_metrics([GAUGE, *lines], "metrics.txt")


def lengths(engine: int, *counts: tuple[str, int]) -> list[str]:
    return [
        f'vllm:request_prompt_tokens_bucket{{engine="{engine}",le="{bound}",model_name="m"}} {count}.0'
        for bound, count in counts
    ]


COUNTERS = [
    'vllm:prefix_cache_queries_total{engine="0"} 8000.0',
    'vllm:prefix_cache_hits_total{engine="0"} 2000.0',
    'vllm:prefix_cache_queries_total{engine="1"} 2000.0',
    'vllm:prefix_cache_hits_total{engine="1"} 0.0',
]
BINS = [
    *lengths(0, ("200.0", 2), ("500.0", 5), ("1000.0", 8), ("+Inf", 10)),
    *lengths(1, ("200.0", 1), ("500.0", 3), ("1000.0", 7), ("+Inf", 10)),
]


def test_two_engines_are_one_answer() -> None:
    found = traffic_of(page(*COUNTERS, *BINS), 529)
    assert found is not None
    assert (found.prompt_tokens, found.hit_tokens, found.token_hit_rate) == (10_000, 2_000, 0.2)
    assert found.requests == 20
    assert found.too_short == (8 / 20, 15 / 20)
    assert (found.most_gain_tokens, found.most_gain_fraction) == (7_980, 0.798)


@pytest.mark.parametrize(
    ("least", "share"),
    [
        (501, (0.4, 0.4)),  # a bin ends just below: known exactly
        (500, (0.15, 0.4)),
        (100, (0.0, 0.15)),
        (5_000, (0.75, 1.0)),
    ],
)
def test_bins_bound_the_share_that_is_too_short(least: int, share: tuple[float, float]) -> None:
    found = traffic_of(page(*COUNTERS, *BINS), least)
    assert found is not None and found.too_short == share


def test_a_page_without_lengths_or_without_lookups() -> None:
    found = traffic_of(page(*COUNTERS), 529)
    assert found is not None
    assert (found.requests, found.too_short, found.most_gain_tokens) == (None, None, 8_000)
    assert traffic_of(page(*BINS), 529) is None
    assert traffic_of(page('vllm:prefix_cache_queries_total{engine="0"} 0.0'), 529) is None
    assert traffic_of(None, 529) is None


def test_odd_bins_are_no_lengths() -> None:
    assert page(*lengths(0, ("nan", 1), ("-3", 2), ("x", 3), ("10.0", 4))).prompt_lengths == ()
