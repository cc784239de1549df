"""The counters of a real 0.32.0 page, and the identities."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvtune.gpu_probe.live.counters import Counters, Expected, broken_identities, read_counters
from kvtune.gpu_probe.live.exposition import samples
from kvtune.tokenization.errors import MissingDependencyError

PAGE = (Path(__file__).parents[2] / "data" / "live" / "metrics-0.32.0.txt").read_text()
RELEASE = (0, 32)
EXPECTED = Expected(requests=5, prompt_tokens=8_100, cached_tokens=4_224, completion_tokens=5)


def counters(page: str = PAGE) -> Counters:
    return read_counters(page, RELEASE, "page")


def test_a_real_page() -> None:
    assert counters() == Counters(
        requests=5,
        prompt_tokens=8_100,
        computed_tokens=3_876,
        hit_tokens=4_224,
        external_tokens=0,
        cached_tokens=4_224,
        prefilled_tokens=3_876,
        generation_tokens=5,
        preemptions=0,
        prefix_queries=8_100,
        prefix_hits=4_224,
        running=0,
        waiting=0,
    )
    assert broken_identities(counters(), EXPECTED, RELEASE) == ()


def test_engines_are_summed_and_gauges_are_not_subtracted() -> None:
    second = PAGE.replace('engine="0"', 'engine="1"').replace(
        "num_requests_running{", 'num_requests_running{x="1",'
    )
    both = counters(PAGE + second)
    assert both.prompt_tokens == 16_200
    busy = replace(both, running=2)
    moved = busy.since(counters())
    assert (moved.prompt_tokens, moved.running, moved.busy) == (8_100, 2, True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"computed_tokens": 3_877},
            "computed + hit + external against prompt tokens: 8,101 counted, 8,100 expected",
        ),
        ({"requests": 6}, "finished requests: 6 counted, 5 expected"),
        ({"cached_tokens": 4_208}, "cached tokens against the answers' own: 4,208 counted, 4,224 expected"),
        ({"external_tokens": 16}, "hit + external against cached tokens: 4,240 counted, 4,224 expected"),
        (
            {"prefilled_tokens": 3_800},
            "tokens prefilled per request against computed tokens: 3,800 counted",
        ),
        ({"prefix_hits": 0}, "prefix cache hits against hit tokens: 0 counted, 4,224 expected"),
    ],
)
def test_each_identity_can_break(change: dict[str, int], said: str) -> None:
    assert any(
        text.startswith(said) for text in broken_identities(replace(counters(), **change), EXPECTED, RELEASE)
    )


def test_old_releases_counted_queries_again_at_each_failed_admission() -> None:
    twice = replace(counters(), prefix_queries=16_200, prefix_hits=8_448)
    assert broken_identities(twice, EXPECTED, (0, 26)) == ()
    assert len(broken_identities(twice, EXPECTED, RELEASE)) == 2


def test_a_missing_counter_is_named() -> None:
    with pytest.raises(MissingDependencyError, match="no vllm:num_preemptions_total"):
        counters("\n".join(line for line in PAGE.splitlines() if "num_preemptions" not in line))


@pytest.mark.parametrize(
    "line", ["vllm:x", "vllm:x{", "vllm:x 1e999", "vllm:x nan", 'vllm:x{a="b} 1', "other 1", ""]
)
def test_lines_that_are_no_samples(line: str) -> None:
    assert [sample for sample in samples(line) if sample.labels] == []
    assert all(sample.name == "vllm:x" for sample in samples(line))
