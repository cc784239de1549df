"""Reuse and the best unit against pool size: the same replays over a ladder of pools.

    ladder -> every unit at every rung -> the best unit of each rung; the knees of the two that matter

Knows replays; not how many bytes a block has. Pool sizes count the null block, as the engine's option does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvtune.analyzers.decision import Outcome, net_gain
from kvtune.analyzers.pool.figures import CapacityPoint, Knee, PoolAdvice, PoolChoice
from kvtune.analyzers.pool.units import ReplayedUnits
from kvtune.analyzers.replay import ReplayResult
from kvtune.analyzers.replays import Replays
from kvtune.analyzers.sweep import Progress

MOST_RUNGS = 12
SHARES = (0.99, 0.95)
"""Of the hits in a pool that never evicts: where the knees are looked for."""

_PRECISION = 32
"""A knee is known to within one part in so many of its size."""


def ladder(smallest: int, largest: int, given: int | None = None) -> list[int]:
    """Pool sizes from `largest` down by halves to `smallest`, at most 12, and the `given` one; ascending."""
    sizes = [largest]
    while sizes[-1] > smallest and len(sizes) < MOST_RUNGS:
        sizes.append(max(sizes[-1] // 2, smallest))
    return sorted({*sizes, *([] if given is None else [given])})


@dataclass(frozen=True)
class Sums:
    """One replay, summed over its requests."""

    hit_tokens: int
    prefill_steps: int
    evicted_blocks: int
    refused_requests: int


class PoolReplays:
    """Replays in pools of any size, each made once.

    Requests that come one at a time do in a pool what they do in an unlimited one until it runs out; so where it
    does not, they are not replayed again.

    Attributes:
        enough_blocks: the smallest pool that runs out with none of the units, one at a time.
    """

    def __init__(self, units: ReplayedUnits) -> None:
        self.units = units
        # One at a time, only pools are replayed that run out, and those need every block told apart.
        self._task = replace(units.task, may_suffice=units.overlap)
        self._found: dict[tuple[int, int], Sums] = {}
        self._unlimited: dict[int, Sums] = {}
        self._enough: dict[int, int] = {}
        for unit in units.match_units:
            result = units.unlimited(unit)
            self._unlimited[unit], self._enough[unit] = _sums(result), result.used_blocks + 1
        self.enough_blocks = max(self._enough.values())

    def of(self, num_blocks: int, unit: int) -> Sums:
        """One unit in a pool of `num_blocks`, in which the longest request can run."""
        if self._suffices(num_blocks, unit):
            return self._unlimited[unit]
        key = (num_blocks, unit)
        if key not in self._found:
            self._found[key] = _sums(self._task.run(self.units.in_pool(unit, num_blocks)))
        return self._found[key]

    def prepare(self, pools: Sequence[int], progress: Progress) -> None:
        """Replay every unit in these pools, on all cores."""
        keys = [
            (pool, unit)
            for pool in pools
            for unit in self.units.match_units
            if not self._suffices(pool, unit)
        ]
        settings = [self.units.in_pool(unit, pool) for pool, unit in keys]
        with Replays(settings, self._task, workers=self.units.workers) as replays:
            for done, (place, result) in enumerate(replays):
                progress("pool sizes", done, len(keys))
                self._found[keys[place]] = _sums(result)
        progress("pool sizes", len(keys), len(keys))

    def _suffices(self, num_blocks: int, unit: int) -> bool:
        return not self.units.overlap and num_blocks >= self._enough[unit]


def _sums(result: ReplayResult) -> Sums:
    return Sums(
        hit_tokens=int(result.hit_tokens.sum()),
        prefill_steps=int(result.prefill_steps.sum()),
        evicted_blocks=int(result.evicted_blocks.sum()),
        refused_requests=len(result.refused),
    )


def explore_pools(
    units: ReplayedUnits, smallest: int, progress: Progress
) -> tuple[tuple[CapacityPoint, ...], PoolAdvice]:
    """Every unit in every pool of the ladder, smallest pool and finest unit first, and what follows from it."""
    replays = PoolReplays(units)
    pools = ladder(smallest, replays.enough_blocks, units.config.num_blocks)
    replays.prepare(pools, progress)
    ordered = sorted(units.match_units)
    points, choices = [], []
    for pool in pools:
        outcomes = [_outcome(unit, replays.of(pool, unit)) for unit in ordered]
        current = next(outcome for outcome in outcomes if outcome.unit == units.current_unit)
        overhead = units.objective.step_overhead
        gains = [net_gain(outcome, current, overhead) for outcome in outcomes]
        points += [
            _point(pool, unit, replays.of(pool, unit), gain)
            for unit, gain in zip(ordered, gains, strict=True)
        ]
        best = units.objective.best(outcomes, current, int(units.task.inputs.prompt_tokens.sum()))
        gain = net_gain(best, current, overhead)
        choices.append(
            PoolChoice(
                num_blocks=pool,
                unit=best.unit if gain > 0 else current.unit,
                net_gain_tokens=max(gain, 0),
            )
        )
    return tuple(points), PoolAdvice(knees=_knees(replays, pools, progress), choices=tuple(choices))


def _point(pool: int, unit: int, sums: Sums, gain: int) -> CapacityPoint:
    return CapacityPoint(
        num_blocks=pool,
        unit=unit,
        engine_hit_tokens=sums.hit_tokens,
        evicted_blocks=sums.evicted_blocks,
        net_gain_tokens=gain,
        refused_requests=sums.refused_requests,
    )


def _knees(replays: PoolReplays, pools: Sequence[int], progress: Progress) -> tuple[Knee, ...]:
    searches = [(unit, share) for unit in replays.units.shown for share in SHARES]
    knees = []
    for place, (unit, share) in enumerate(searches):
        progress("knees", place, len(searches))
        knee = find_knee(replays, pools, unit, share)
        knees += [] if knee is None else [knee]
    progress("knees", len(searches), len(searches))
    return tuple(knees)


def find_knee(replays: PoolReplays, pools: Sequence[int], unit: int, share: float) -> Knee | None:
    """The smallest pool that keeps `share` of the hits of the largest one, as do all larger ones that are replayed.

    The first rung from which on every rung keeps it is found, then the gap below it is halved until it is known to
    within 1/32 of the pool's size. None where nothing is hit.
    """
    wanted = share * replays.of(pools[-1], unit).hit_tokens
    if not wanted:
        return None
    keeps = [replays.of(pool, unit).hit_tokens >= wanted for pool in pools]
    first = max((rung + 1 for rung, kept in enumerate(keeps) if not kept), default=0)
    high = pools[first]
    low = pools[first - 1] if first else high
    while high - low > max(1, high // _PRECISION):
        middle = (low + high) // 2
        if replays.of(middle, unit).hit_tokens >= wanted:
            high = middle
        else:
            low = middle
    return Knee(
        unit=unit,
        share=share,
        num_blocks=high,
        engine_hit_tokens=replays.of(high, unit).hit_tokens,
    )


def _outcome(unit: int, sums: Sums) -> Outcome:
    """A replay as the recommendation's rule takes it, all requests in one."""
    return Outcome(unit, np.array([sums.hit_tokens]), np.array([sums.prefill_steps]))
