"""`RateSearch`: the largest multiple of a trace's arrival rate that still meets the objectives, tried rate by rate.

    1 2 8 64         doubling ever faster, until one misses         without a guess
    1 g 1.25g ...    around the guess, then away from it            with one
    sqrt(8 * 64)     halving the bracket, until it is narrow

Rates that are met are taken to lie below those that are missed, which holds but for a few requests around the
limit. Every candidate is searched by the same rules. Knows rates; neither what a request is nor who serves it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Literal

from kvtune.analyzers.validation import RateSearch as HowFound

QUALIFYING_SHARE = 0.95
"""A rate is met when this share of all requests meets every objective."""

CEILING = 64.0
"""The largest multiple that is tried."""

EXECUTED_RESOLUTION = 1.15
EXECUTED_RUNS = 10
"""Where every rate takes a run: how narrow a bracket must be, and how many runs a candidate gets."""

REHEARSED_RESOLUTION = 1.01
REHEARSED_RUNS = 30


def how_executed(*, complete: bool) -> HowFound:
    """For the report: every rate was a run. `complete`: time allowed every candidate's search to end."""
    return _how("executed", EXECUTED_RESOLUTION, EXECUTED_RUNS, complete=complete)


def how_rehearsed() -> HowFound:
    """For the report: the bookkeeping alone was run, which always comes to an end."""
    return _how("rehearsed", REHEARSED_RESOLUTION, REHEARSED_RUNS, complete=True)


def _how(
    method: Literal["executed", "rehearsed"], resolution: float, runs: int, *, complete: bool
) -> HowFound:
    return HowFound(
        method=method,
        qualifying_share=QUALIFYING_SHARE,
        ceiling=CEILING,
        resolution=resolution,
        runs=runs,
        complete=complete,
    )


class RateSearch:
    """One candidate's search.

    Attributes:
        met: the largest rate that was met, 0 before one was. missed: the smallest one that was not.
        runs: rates tried.
    """

    def __init__(self, resolution: float, most_runs: int, guess: float | None = None) -> None:
        """`guess`: where the limit is thought to be, by which nothing but the order of trials is decided."""
        self.met = 0.0
        self.missed: float | None = None
        self.runs = 0
        self._resolution = resolution
        self._most_runs = most_runs
        self._guess = min(guess, CEILING) if guess is not None and guess > 1 else None
        self._factor = 2.0 if self._guess is None else 1.25

    @property
    def next_rate(self) -> float | None:
        """What to try next; None where the search has ended."""
        if self.runs >= self._most_runs or self.met >= CEILING:
            return None
        if self.missed is None:
            if self.met == 0:
                return 1.0
            if self._guess is not None and self.met < self._guess:
                return self._guess
            return min(self.met * self._factor, CEILING)
        if self.met == 0 or self.missed / self.met <= self._resolution:
            return None
        return max(self.missed / self._factor, math.sqrt(self.met * self.missed))

    def tell(self, *, met: bool) -> None:
        """What came of `next_rate`."""
        rate = self.next_rate
        if rate is None:
            raise ValueError("the search has ended")
        if met:
            self.met = rate
        else:
            self.missed = rate
        self.runs += 1
        if rate not in (1.0, self._guess):
            self._factor = min(self._factor**2, CEILING)


def search_together(
    searches: Sequence[RateSearch],
    try_rate: Callable[[int, float], bool],
    *,
    budget_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Run all searches side by side, one rate of each a round, so that a drift of the machine and the end of the time
    hit all alike.

    Args:
        try_rate: told a search's place and a rate, says whether it is met.
        budget_s: no round begins that, as long as the one before, would end later.

    Returns:
        Whether every search came to its end.
    """
    began = clock()
    round_s = 0.0
    while any(search.next_rate is not None for search in searches):
        started = clock()
        if round_s and started + round_s - began > budget_s:
            return False
        for place, search in enumerate(searches):
            rate = search.next_rate
            if rate is not None:
                search.tell(met=try_rate(place, rate))
        round_s = clock() - started
    return True
