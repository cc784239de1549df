"""The decision line against hand-worked break points and against a slow scan over step overheads."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtune.analyzers.decision import Outcome, decision_line
from kvtune.analyzers.decision.line import worst_losses

TAU_AIRLINE = {  # unit: (hit tokens, prefill steps), blocks of 1,056; data/expected/step-time.json
    1056: (5_698_176, 1614),
    528: (6_118_464, 1887),
    264: (6_246_240, 2240),
    132: (6_344_844, 2469),
    96: (6_369_408, 2586),
    32: (6_400_832, 2797),
    24: (6_401_136, 2835),
    8: (6_327_576, 2876),
}
PROMPT_TOKENS = 6_848_473


def outcomes_of(rows: dict[int, tuple[int, int]]) -> list[Outcome]:
    return [
        Outcome(unit, np.array([hits], dtype=np.int64), np.array([steps], dtype=np.int64))
        for unit, (hits, steps) in rows.items()
    ]


def test_break_points_are_exact() -> None:
    """From 24 to 32: 304 tokens for 38 steps, 8 each. From 528 to unset: 420,288 for 273 steps."""
    line = decision_line(outcomes_of(TAU_AIRLINE))
    assert [part.unit for part in line] == [24, 32, 96, 132, 528, 1056]
    assert line[0].to_tokens == Fraction(304, 38)
    assert line[-1].from_tokens == Fraction(420_288, 273)
    assert line[-1].to_tokens is None
    assert [part.from_tokens for part in line[1:]] == [part.to_tokens for part in line[:-1]]


def test_the_published_worst_losses() -> None:
    """264 loses at most 26%, the unset unit 126%; 264 is nowhere the best."""
    outcomes = outcomes_of(TAU_AIRLINE)
    losses = dict(zip(TAU_AIRLINE, worst_losses(outcomes, PROMPT_TOKENS), strict=True))
    assert losses[264] == pytest.approx(0.259, abs=0.001)
    assert losses[1056] == pytest.approx(1.255, abs=0.001)
    assert min(losses, key=lambda unit: losses[unit]) == 264


def test_of_equal_units_the_coarsest_stands_on_the_line() -> None:
    assert [part.unit for part in decision_line(outcomes_of({1024: (5, 1), 16: (5, 1)}))] == [1024]


ROWS = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 30)), min_size=1, max_size=8)


@given(ROWS)
def test_against_a_scan(rows: list[tuple[int, int]]) -> None:
    outcomes = outcomes_of({2**place: row for place, row in enumerate(rows)})
    line = decision_line(outcomes)
    for overhead in [Fraction(number, 3) for number in range(0, 200, 7)]:
        most = max(hits - overhead * steps for hits, steps in rows)
        [part] = [
            part
            for part in line
            if part.from_tokens <= overhead and (part.to_tokens is None or overhead < part.to_tokens)
        ]
        hits, steps = rows[part.unit.bit_length() - 1]
        assert hits - overhead * steps == most


@given(ROWS)
def test_worst_losses_against_a_scan(rows: list[tuple[int, int]]) -> None:
    outcomes = outcomes_of({2**place: row for place, row in enumerate(rows)})
    found = worst_losses(outcomes, 1000, (1.0, 40.0))
    overheads = np.linspace(1.0, 40.0, 400)
    costs = np.array([[1000 - hits + overhead * steps for overhead in overheads] for hits, steps in rows])
    scanned = (costs / costs.min(axis=0)).max(axis=1) - 1
    assert (found >= scanned - 1e-9).all()
    np.testing.assert_allclose(found, scanned, atol=0.05)
