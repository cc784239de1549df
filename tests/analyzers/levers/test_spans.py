"""Where texts meet again, against the obvious search; and what moving a span keeps."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.levers.reorder import reorder
from kvtune.analyzers.levers.spans import common_prefix, find_varying_span, meet_again
from kvtune.analyzers.levers.trial import measure
from kvtune.analyzers.levers.wording import Wording
from kvtune.analyzers.options import AnalyzeOptions
from kvtune.analyzers.shared import find_shared_prefixes
from tests.analyzers.traces import trace_of

TEXTS = st.lists(st.integers(0, 2), max_size=24)


def ids(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


@settings(max_examples=200, deadline=None)
@given(TEXTS, TEXTS)
def test_meetings_are_the_nearest_ones(one: list[int], other: list[int]) -> None:
    found = meet_again(ids(one), ids(other), least=4)
    places = [
        first + second
        for first in range(len(one) - 3)
        for second in range(len(other) - 3)
        if one[first : first + 4] == other[second : second + 4]
    ]
    if not places:
        assert found is None
        return
    assert found is not None
    assert found.first + found.second == min(places)
    run = common_prefix(ids(one[found.first :]), ids(other[found.second :]))
    assert found.run == run >= 4


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=4, max_size=9), st.integers(0, 30), st.integers(60, 200))
def test_moving_a_span_keeps_every_token(sizes: list[int], head: int, stable: int) -> None:
    # Prompts: a head, a span of their own, text in common, a token of their own.
    prompts = [
        [
            *range(1, head + 1),
            *range(1_000 * (r + 1), 1_000 * (r + 1) + size),
            *range(500, 500 + stable),
            90_000 + r,
        ]
        for r, size in enumerate(sizes)
    ]
    trace = trace_of(prompts)
    span = find_varying_span(trace, find_shared_prefixes(trace))
    assert span is not None
    assert span.start == head
    assert [end - head for end in span.ends.tolist()] == sizes
    base = measure(
        trace,
        EngineConfig(parse_groups("full:4")),
        AnalyzeOptions(step_cost_tokens=0),
        replica=None,
        sessions=np.arange(len(trace), dtype=np.int32),
    )
    found = reorder(base, Wording())
    assert found is not None
    assert found.gain.after is not None
    moved = found.gain.after.trace
    assert [sorted(moved.prompt(r).tolist()) for r in range(len(trace))] == [
        sorted(prompt) for prompt in prompts
    ]
    # All but the first reuse the whole blocks of what is in common now, instead of those of the head alone.
    gained = (head + stable) // 4 * 4 - head // 4 * 4
    assert found.lever.gain_tokens == (len(sizes) - 1) * gained


def test_a_long_text_of_ones_own_is_no_span() -> None:
    # What follows is shorter than what differs.
    trace = trace_of([[*range(1_000 * r, 1_000 * r + 200), *range(500_000, 500_060)] for r in range(1, 6)])
    assert find_varying_span(trace, find_shared_prefixes(trace)) is None
