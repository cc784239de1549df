"""Fates told right: nothing kept, all reused, evicted, moved; blocks of 8 tokens, one Mamba and one full group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvtune.analyzers.analysis import find
from kvtune.analyzers.explain import explain_request
from kvtune.analyzers.explanation import Explanation
from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.options import AnalyzeOptions
from kvtune.analyzers.replay import replay
from kvtune.analyzers.shared import find_shared_prefixes
from kvtune.analyzers.sweep import no_progress, replay_input
from kvtune.tokenization.trace import TokenTrace
from tests.analyzers.traces import trace_of

CONFIG = EngineConfig(parse_groups("mamba:8,full:8"))
TEXT = list(range(1, 41))


def explained(trace: TokenTrace, request: int, **config: object) -> Explanation:
    return explain_request(
        trace,
        replace(CONFIG, **config),  # type: ignore[arg-type]
        AnalyzeOptions(),
        request,
        kvtune_version="test",
        decode=lambda ids: " ".join(map(str, ids)),
    )


def total(found: Explanation) -> int:
    losses = found.losses
    return (
        losses.hit_tokens
        + losses.granularity
        + losses.window
        + losses.no_recurrent_state
        + losses.evicted
        + losses.in_flight
        + losses.speculative_drop
    )


def test_no_state_was_kept_where_they_part_and_a_junction_is_planted() -> None:
    # The first prompt of 35 keeps a state at 32, its last block boundary. The second shares 20: attention has
    # blocks to 16, Mamba nothing, so it computes all and stops at 16; the third resumes there.
    trace = trace_of([TEXT[:35], [*TEXT[:20], *range(100, 115)], [*TEXT[:20], *range(200, 215)]])
    second, third = explained(trace, 1), explained(trace, 2)
    assert (second.shared_tokens, second.shared_with) == (20, "r0")
    assert [hit.hit_tokens for hit in second.group_hits] == [0, 16]
    assert (second.hit_tokens, second.junction, second.fate) == (0, 16, "no_state")
    assert (second.losses.granularity, second.losses.no_recurrent_state) == (4, 16)
    assert second.chunk_ends == (16, 32, 35)
    assert any("stops at 16 and leaves a state" in sentence for sentence in second.why)
    assert (third.hit_tokens, third.fate, third.shared_with) == (16, "full", "r1")
    assert [(event.event, event.position, event.how) for event in third.events] == [("left", 16, "junction")]
    assert any("left by r1 (junction)" in sentence for sentence in third.why)
    assert total(second) == total(third) == 20


def test_evicted_names_who_took_it() -> None:
    # A pool of 9 blocks (8 usable): the second prompt needs nearly all of them and takes the first one's.
    trace = trace_of([TEXT[:35], list(range(100, 140)), TEXT[:35]])
    found = explained(trace, 2, num_blocks=9)
    assert (found.shared_tokens, found.hit_tokens, found.fate) == (34, 0, "evicted")
    assert found.losses.evicted == 32
    taken = [event for event in found.events if event.event == "evicted"]
    assert {event.by for event in taken} <= {"r1", "r2"}
    assert any("evicted before it came" in sentence for sentence in found.why)


def test_nothing_shared_and_too_little_shared() -> None:
    trace = trace_of([TEXT[:20], list(range(50, 60)), [*TEXT[:5], 99, 98]])
    assert explained(trace, 1).fate == "no_sharing"
    assert explained(trace, 1).divergence is None
    assert explained(trace, 2).fate == "grid"
    assert explained(trace, 2, match_unit=2).fate == "below_floor"


def test_a_moved_tail_is_told() -> None:
    # Unit 2: the first prompt of 13 ends a step at 12, inside a block, and goes on: its key moves to a copy.
    trace = trace_of([TEXT[:13], [*TEXT[:12], 77, 78, 79]])
    found = explained(trace, 1, match_unit=2)
    assert found.hit_tokens == 12
    assert [
        (event.event, event.how) for event in found.events if event.group == 0 and event.position == 12
    ] == [
        ("left", "prompt tail"),
        ("moved", "moved copy"),
    ]


@pytest.mark.parametrize("show", [False, True])
def test_text_only_where_asked_for(show: bool) -> None:
    trace = trace_of([TEXT[:35], [*TEXT[:20], 500]])
    found = explain_request(
        trace,
        CONFIG,
        AnalyzeOptions(),
        1,
        kvtune_version="test",
        decode=lambda ids: " ".join(map(str, ids)),
        show_text=show,
    )
    assert found.divergence is not None
    assert found.divergence.own_class == "number"
    assert (found.divergence.own_text == "500") is show
    assert (found.divergence.other_text is not None) is show


def test_replicas_have_histories_of_their_own() -> None:
    trace = trace_of([TEXT[:20]] * 3, servers=["a", "b", "a"])
    assert explained(trace, 1).fate == "no_sharing"
    assert explained(trace, 2).shared_with == "r0"


def test_by_timestamps_the_same_engine_is_explained_that_was_analyzed() -> None:
    # Bursts in a pool that holds little more than one request: what is evicted depends on how steps overlap.
    rng = np.random.default_rng(5)
    prompts = [[*TEXT[: int(rng.integers(8, 40))], *rng.integers(100, 999, 9).tolist()] for _ in range(24)]
    trace = replace(trace_of(prompts), arrival=np.repeat(np.arange(6) * 0.02, 4))
    config = replace(CONFIG, num_blocks=16, max_num_batched_tokens=32)
    options = AnalyzeOptions(arrivals="trace")
    analyzed = find(trace, config, options, no_progress).result_on(8)
    hits = [
        explain_request(trace, config, options, number, kvtune_version="test").hit_tokens
        for number in range(len(trace))
    ]
    assert hits == analyzed.hit_tokens.tolist()
    sync = replay(config, replay_input(trace, find_shared_prefixes(trace)), arrivals="trace")
    assert sync.hit_tokens.tolist() != hits, "the case tells both engines apart"
