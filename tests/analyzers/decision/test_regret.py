"""What a choice can lose, worked by hand cause by cause."""

from __future__ import annotations

import numpy as np
import pytest

from kvtune.analyzers.decision import Evidence, Objective, Outcome
from kvtune.analyzers.decision.regret import regret_of

ZERO = Objective("overhead", 0)


def flat(unit: int, hits: list[int], steps: int = 1) -> Outcome:
    return Outcome(unit, np.array(hits, dtype=np.int64), np.full(len(hits), steps, dtype=np.int64))


def evidence(shared: list[int], prompt: int = 1000, families: list[int] | None = None) -> Evidence:
    count = len(shared)
    return Evidence(
        np.full(count, prompt, dtype=np.int64),
        np.array(shared, dtype=np.int64),
        np.arange(count, dtype=np.int32),
        np.zeros(count, dtype=np.int32) if families is None else np.array(families, dtype=np.int32),
        count,
    )


def test_over_the_step_overhead() -> None:
    """At 256 tokens, twice 128, unit 16 (500 hits, 2 steps) nets 244 against 300 of unit 256: 56 of 1,000."""
    coarse, fine = flat(256, [300] * 4), flat(16, [500] * 4, steps=2)
    found = regret_of(fine, [coarse, fine], Objective("overhead", 128), evidence([999] * 4))
    assert found.overhead == pytest.approx(0.056)
    assert found.line_changes


def test_over_the_halves_of_the_trace() -> None:
    """The second half gains nothing with 16 and 100 of 1,000 with 32."""
    fine, other = flat(16, [500, 500, 0, 0]), flat(32, [300, 300, 100, 100])
    found = regret_of(fine, [other, fine], ZERO, evidence([999] * 4))
    assert found.time == pytest.approx(0.1)


def test_times_are_stated_in_tokens() -> None:
    """1 ms a token: 0.2 s more of 4,000 tokens are 200 of them, 5%."""
    slow = Outcome(16, np.zeros(4, np.int64), np.ones(4, np.int64), np.full(4, 1.05))
    fast = Outcome(32, np.zeros(4, np.int64), np.ones(4, np.int64), np.full(4, 1.0))
    timed = Objective("gpu-time", 128, token_s=1e-3)
    found = regret_of(slow, [fast, slow], timed, evidence([999] * 4))
    assert found.time == pytest.approx(0.05)


def test_a_shared_prefix_that_shrinks_below_its_unit_loses_it() -> None:
    """Shared prefixes of 361 with unit 352: 9 tokens of margin; one more and all its hits are gone, while unit 16 keeps
    352. (arena-judge's case, published: shared prefix 361, unit 352, margin 9)"""
    coarse, fine = flat(352, [352] * 4), flat(16, [352] * 4, steps=2)
    found = regret_of(coarse, [coarse, fine], ZERO, evidence([361] * 4))
    assert found.margin == 9
    assert found.prompt_length == pytest.approx(
        320 / 1000
    )  # 32 tokens shorter, 329 are shared: 320 with unit 16
    assert regret_of(fine, [coarse, fine], ZERO, evidence([361] * 4)).margin is None


def test_families_are_drawn_whole_where_there_are_enough() -> None:
    """Ten families of two requests: one of them carries the other unit's whole gain."""
    families = [number // 2 for number in range(20)]
    many = evidence([999] * 20, families=families)
    assert many.clusters.tolist() == families
    few = evidence([999] * 20, families=[0] * 20)
    assert few.clusters.tolist() == list(range(20))
