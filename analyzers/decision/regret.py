"""Regret: what the chosen unit can lose against the best one, should the server, the day or the prompts be others.

Stated as a share of all prompt tokens. Seconds are turned into tokens of a long prefill. Four ways to be wrong:

    step overhead   the plausible range of it, or the range of the step times
    time            the first and the second half of the trace, each by itself
    conversations   sessions and families drawn anew (95th percentile of the draws)
    prompt length   every shared prefix 8 or 32 tokens longer or shorter (estimated from where it ends)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvtune.analyzers.decision.line import costs_by_overhead, decision_line
from kvtune.analyzers.decision.objective import Objective
from kvtune.analyzers.decision.outcome import Outcome
from kvtune.tokenization.trace import Float64, Int32, Int64

SHIFTS = (-32, -8, 8, 32)
"""Tokens by which a shared prefix may change: a date, a tool's name, a sentence."""

FINE_UNIT = 16
"""Tokens: the best of other units is expected to lose no more than the shift, rounded up to that."""

WORTH_SAYING = 0.005
"""Of all prompt tokens: a smaller loss is not put into words, and ends no margin."""

DRAWS = 200
FEW_CLUSTERS = 10


@dataclass(frozen=True)
class Evidence:
    """What is known of the requests besides their outcomes.

    Attributes:
        prompt_tokens: int64[R]. shared: int64[R], the longest shared prefix of each.
        sessions: int32[R], conversations. families: int32[R], requests with the same tools and system prompt.
        distinct_prompts: how many different prompts there are.
    """

    prompt_tokens: Int64
    shared: Int64
    sessions: Int32
    families: Int32
    distinct_prompts: int

    @property
    def clusters(self) -> Int32:
        """int32[R]: conversations; families where there are enough, as theirs are not independent."""
        many = len(np.unique(self.families)) >= FEW_CLUSTERS
        return self.families if many else self.sessions


@dataclass(frozen=True)
class Regret:
    """Shares of all prompt tokens that a choice can lose, by cause; each 0 where the choice stays the best.

    Attributes:
        overhead, time, conversations, prompt_length: as above.
        line_changes: whether another unit is best somewhere in the plausible range of step overheads.
        margin: tokens by which every shared prefix may shrink before another unit may be the better one (estimated);
            None where 32 are not enough for that.
    """

    overhead: float
    time: float
    conversations: float
    prompt_length: float
    line_changes: bool
    margin: int | None = None

    @property
    def worst(self) -> tuple[float, str]:
        """The largest, and over what it was found."""
        named = (
            (self.overhead, "step overhead"),
            (self.time, "time"),
            (self.conversations, "conversations"),
            (self.prompt_length, "prompt length"),
        )
        return max(named)


def regret_of(
    chosen: Outcome, outcomes: Sequence[Outcome], objective: Objective, evidence: Evidence, seed: int = 0
) -> Regret:
    """What choosing this unit can lose."""
    place = list(outcomes).index(chosen)
    total = int(evidence.prompt_tokens.sum())
    costs = _costs_in_tokens(outcomes, objective)
    over, changes = overhead_loss(place, outcomes, objective, total)
    return Regret(
        overhead=over,
        time=_over_time(place, costs, evidence.prompt_tokens),
        conversations=_over_clusters(place, costs, evidence, seed),
        prompt_length=max(_over_shift(place, costs, outcomes, evidence, shift) for shift in SHIFTS),
        line_changes=changes,
        margin=_margin(place, costs, outcomes, evidence),
    )


def _costs_in_tokens(outcomes: Sequence[Outcome], objective: Objective) -> Float64:
    """float64[U, R]."""
    costs = np.array([objective.cost(outcome) for outcome in outcomes])
    return costs / objective.token_s if objective.in_seconds and objective.token_s else costs


def _lost(place: int, sums: Float64, tokens: float) -> float:
    return float(sums[place] - sums.min()) / max(1.0, tokens)


def overhead_loss(
    place: int, outcomes: Sequence[Outcome], objective: Objective, total: int
) -> tuple[float, bool]:
    """What an outcome can lose over the plausible step overheads, and whether it is not the best at all of them.

    Args:
        place: of the outcome.
        total: prompt tokens.
    """
    if objective.in_seconds and objective.token_s:
        recomputed = np.array(
            [total - int(outcome.hit_tokens.sum()) for outcome in outcomes], dtype=np.float64
        )
        seconds = np.array([objective.cost(outcome).sum() for outcome in outcomes])
        beyond = seconds / objective.token_s - recomputed
        costs = np.stack([recomputed + factor * beyond for factor in (*objective.range, 1.0)], axis=1)
    else:
        low, high = objective.overheads
        inner = [
            float(found.from_tokens)
            for found in decision_line(outcomes)
            if low < float(found.from_tokens) < high
        ]
        costs = costs_by_overhead(outcomes, total, [low, *inner, high])
    lost = (costs[place] - costs.min(axis=0)) / max(1, total)
    return float(lost.max()), bool((costs.argmin(axis=0) != place).any() and lost.max() > 0)


def _over_time(place: int, costs: Float64, prompt_tokens: Int64) -> float:
    half = costs.shape[1] // 2
    if not half:
        return 0.0
    return max(
        _lost(place, costs[:, part].sum(axis=1), float(prompt_tokens[part].sum()))
        for part in (slice(0, half), slice(half, None))
    )


def _over_clusters(place: int, costs: Float64, evidence: Evidence, seed: int) -> float:
    clusters = evidence.clusters
    number = int(clusters.max()) + 1
    sums = np.stack([np.bincount(clusters, weights=row, minlength=number) for row in costs], axis=1)
    tokens = np.bincount(clusters, weights=evidence.prompt_tokens, minlength=number)
    generator = np.random.default_rng(seed)
    lost = []
    for _ in range(DRAWS):
        counts = np.bincount(generator.integers(0, number, number), minlength=number).astype(np.float64)
        lost.append(_lost(place, counts @ sums, float(counts @ tokens)))
    return float(np.quantile(lost, 0.95))


def shifted_costs(costs: Float64, outcomes: Sequence[Outcome], evidence: Evidence, shift: int) -> Float64:
    """float64[U]: costs in tokens with every shared prefix `shift` tokens longer: a hit moves by as much as the last
    boundary of its unit in the shared prefix does, and is never below 0. An estimate: no state is replayed."""
    shared, limit = evidence.shared, evidence.prompt_tokens - 1
    moved = np.clip(shared + shift, 0, limit + max(shift, 0))
    sums = np.empty(len(outcomes))
    for place, outcome in enumerate(outcomes):
        unit = outcome.unit
        change = moved // unit * unit - shared // unit * unit
        change = np.where(shared > 0, np.maximum(change, -outcome.hit_tokens), 0)
        change = np.where((outcome.hit_tokens > 0) | (change < 0), change, 0)
        sums[place] = costs[place].sum() - change.sum()
    return sums


def _over_shift(
    place: int, costs: Float64, outcomes: Sequence[Outcome], evidence: Evidence, shift: int
) -> float:
    """The loss against the best unit after the shift. Some unit, replayed or not, may then fit as well as the chosen
    one fits now, but for the shift in whole blocks of 16: states then lie elsewhere, which moved boundaries do not
    tell."""
    sums = shifted_costs(costs, outcomes, evidence, shift)
    unavoidable = -(-abs(shift) // FINE_UNIT) * FINE_UNIT
    fitting = float(costs[place].sum()) + unavoidable * int((evidence.shared > 0).sum())
    best = min(float(sums.min()), fitting)
    return max(0.0, float(sums[place]) - best) / max(1.0, float(evidence.prompt_tokens.sum()))


def _margin(place: int, costs: Float64, outcomes: Sequence[Outcome], evidence: Evidence) -> int | None:
    for shrink in range(1, -min(SHIFTS) + 1):
        if _over_shift(place, costs, outcomes, evidence, -shrink) > WORTH_SAYING:
            return shrink - 1
    return None
