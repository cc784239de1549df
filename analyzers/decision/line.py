"""The decision line: for each step overhead, the match unit that costs least.

With H(u) hit tokens and S(u) prefill steps, unit u is worth H(u) - p S(u) at a step overhead of p tokens: a straight
line. The best unit at each p is their upper envelope; where it changes is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from kvtune.analyzers.decision.outcome import Outcome
from kvtune.analyzers.step_times.overhead import PLAUSIBLE_OVERHEAD
from kvtune.tokenization.trace import Float64


@dataclass(frozen=True)
class DecisionRange:
    """From which step overhead up to which a unit is the best.

    Attributes:
        from_tokens: inclusive. to_tokens: exclusive; None: without end.
        unit: the best there; of equal ones the coarsest.
    """

    from_tokens: Fraction
    to_tokens: Fraction | None
    unit: int


def decision_line(outcomes: Sequence[Outcome]) -> tuple[DecisionRange, ...]:
    """The ranges from a step overhead of 0 upwards, ascending."""
    lines = [
        (int(outcome.prefill_steps.sum()), int(outcome.hit_tokens.sum()), outcome.unit)
        for outcome in outcomes
    ]
    here = Fraction(0)
    # At p = 0 the most hits win, with the fewest steps among equals, then the coarsest unit.
    steps, hits, unit = max(lines, key=lambda line: (line[1], -line[0], line[2]))
    ranges: list[DecisionRange] = []
    while True:
        crossings = [
            (Fraction(hits - other_hits, steps - other_steps), other_steps, -other_unit, other_hits)
            for other_steps, other_hits, other_unit in lines
            if other_steps < steps
        ]
        if not crossings:
            ranges.append(DecisionRange(here, None, unit))
            return tuple(ranges)
        there, next_steps, negative_unit, next_hits = min(crossings)
        if there > here:
            ranges.append(DecisionRange(here, there, unit))
        here, steps, hits, unit = max(here, there), next_steps, next_hits, -negative_unit


def worst_losses(
    outcomes: Sequence[Outcome], prompt_tokens: int, overheads: tuple[float, float] = PLAUSIBLE_OVERHEAD
) -> Float64:
    """float64[U]: the largest relative loss of each unit over a range of step overheads, 0.26 is 26%.

    At an overhead p a unit costs its recomputed tokens + p * its prefill steps; its loss is that over the least cost of
    any unit at the same p. Between two break points the best unit does not change and the loss is monotonic, so the
    largest is at a break point or at an end.
    """
    low, high = overheads
    points = {low, high}
    for found in decision_line(outcomes):
        points |= {float(found.from_tokens)} & _inside(float(found.from_tokens), low, high)
    costs = costs_by_overhead(outcomes, prompt_tokens, sorted(points))
    worst: Float64 = (costs / costs.min(axis=0)).max(axis=1) - 1
    return worst


def costs_by_overhead(outcomes: Sequence[Outcome], prompt_tokens: int, overheads: Sequence[float]) -> Float64:
    """float64[U, P]: recomputed tokens + overhead * prefill steps of each unit, in tokens."""
    recomputed = np.array(
        [prompt_tokens - int(outcome.hit_tokens.sum()) for outcome in outcomes], dtype=np.float64
    )
    steps = np.array([int(outcome.prefill_steps.sum()) for outcome in outcomes], dtype=np.float64)
    costs: Float64 = recomputed[:, None] + steps[:, None] * np.array(overheads, dtype=np.float64)
    return costs


def _inside(point: float, low: float, high: float) -> set[float]:
    return {point} if low < point < high else set()
