"""The largest arrival rate at which a server still meets the objectives: the trace sent again, its times compressed.

Every trial begins with a cache that is empty or set apart. Knows loads and objectives; how rates are picked is for
`rate_search`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping

from kvtune.gpu_probe.live.latency import latency_of, meets
from kvtune.gpu_probe.live.load import Run
from kvtune.gpu_probe.rate_search import (
    EXECUTED_RESOLUTION,
    EXECUTED_RUNS,
    QUALIFYING_SHARE,
    RateSearch,
)
from kvtune.tokenization.errors import MissingDependencyError

BUDGET_S = 120.0
"""What a candidate's trials may take beyond twice the time of its own run."""

Send = Callable[[float], Awaitable[Run]]
"""Sends all requests at a multiple of their rate, into a cache of their own."""


async def find_largest_rate(
    own: Run, send: Send, slo: Mapping[str, float], note: Callable[[str], None]
) -> tuple[RateSearch, bool]:
    """The search of one candidate, and whether it came to its end; `own` is its run at the trace's rate.

    It ends before where time is up, where this client cannot send as fast, and where the server fails.
    """
    search = RateSearch(EXECUTED_RESOLUTION, EXECUTED_RUNS)
    if own.void:
        return search, False
    search.tell(met=is_met(own, slo))
    budget_s = BUDGET_S + 2 * own.wall_s
    began, last_s = time.monotonic(), own.wall_s
    while (rate := search.next_rate) is not None:
        if time.monotonic() - began + last_s > budget_s:
            return search, False
        started = time.monotonic()
        try:
            run = await send(rate)
        except MissingDependencyError as error:
            note(f"no larger load was tried than {rate:.3g} times the trace's: {error}")
            return search, False
        last_s = time.monotonic() - started
        if run.void:
            note(f"this client cannot send {rate:.3g} times as fast as the trace: no larger load was tried")
            return search, False
        search.tell(met=is_met(run, slo))
    return search, True


def is_met(run: Run, slo: Mapping[str, float]) -> bool:
    """Whether enough of all requests meet every objective; refused ones and those without an answer do not."""
    latencies = [None if answer is None else latency_of(answer) for answer in run.answers]
    good = sum(latency is not None and meets(latency, slo) for latency in latencies)
    return good >= QUALIFYING_SHARE * len(latencies)
