"""The trace under other loads: the same requests, arriving faster or slower, replayed by timestamps with step times.

    arrival / multiplier --> replay of the telling units --> TTFT, end-to-end latency, share of time the GPU is busy

Steps are shared between requests, and prefill runs beside decode. What a unit is worth changes with the load: beside
decoding requests an extra step costs its own tokens only, and a server that is saturated gains most from fewer tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from kvtune.analyzers.decision import Objective
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.replay import ReplayResult
from kvtune.analyzers.replays import Replays, ReplayTask
from kvtune.analyzers.report import LoadCandidate, LoadLatency, LoadPoint
from kvtune.analyzers.sweep import Progress
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.trace import Float64

MOST_UNITS = 8


def load_points(
    settings: Mapping[int, EngineConfig],
    task: ReplayTask,
    *,
    current_unit: int,
    objective: Objective,
    multipliers: Sequence[float],
    workers: int,
    progress: Progress,
) -> tuple[LoadPoint, ...]:
    """One point a multiplier of the trace's own rate, in their order.

    Args:
        settings: the server by effective unit. task: the requests, with step times; its arrivals are scaled.

    Raises:
        UnusableInputError: not every request has a timestamp, or all have the same.
    """
    arrival = task.inputs.arrival
    if arrival is None or arrival[-1] <= arrival[0]:
        raise UnusableInputError(
            "the trace has no arrival times to scale",
            field="--load",
            way_out="leave --load out, or record a trace with timestamps",
        )
    points = []
    units = list(settings)
    for place, multiplier in enumerate(multipliers):
        scaled = replace(task.inputs, arrival=arrival[0] + (arrival - arrival[0]) / multiplier)
        timed = replace(task, inputs=scaled, arrivals="trace", check=False)
        configs = [replace(settings[unit], scheduling="async") for unit in units]
        with Replays(configs, timed, workers=workers) as replays:
            results = replays.results(
                lambda done, total, place=place: progress(  # type: ignore[misc]
                    "load", place * total + done, len(multipliers) * total
                )
            )
        assert scaled.arrival is not None
        replicas = 1 if task.replica is None else len(np.unique(task.replica))
        rows = tuple(
            _candidate(unit, result, scaled.arrival, replicas)
            for unit, result in zip(units, results, strict=True)
        )
        costs = {
            unit: _cost(result, scaled.arrival, objective)
            for unit, result in zip(units, results, strict=True)
        }
        best = min(units, key=lambda unit: (costs[unit], -unit))
        busy = next(row.busy for row in rows if row.unit == current_unit)
        points.append(LoadPoint(multiplier=multiplier, busy=busy, best_unit=best, candidates=rows))
    return tuple(points)


def telling_units(units: Sequence[int], named: Sequence[int]) -> list[int]:
    """At most `MOST_UNITS` of the units: `named` first, then the coarsest."""
    wanted = [unit for unit in dict.fromkeys([*named, *sorted(units, reverse=True)]) if unit in units]
    return sorted(wanted[:MOST_UNITS], reverse=True)


def _cost(result: ReplayResult, arrival: Float64, objective: Objective) -> float:
    """What the objective minimises under load."""
    if objective.kind == "ttft" and result.first_token_s is not None:
        return float(np.nansum(result.first_token_s - arrival))
    if objective.in_seconds and result.added_prefill_s is not None:
        return float(result.added_prefill_s.sum())
    return -float(result.hit_tokens.sum())


def _candidate(unit: int, result: ReplayResult, arrival: Float64, replicas: int) -> LoadCandidate:
    assert result.first_token_s is not None and result.finished_s is not None and result.busy_s is not None
    ttft, e2e = result.first_token_s - arrival, result.finished_s - arrival
    span = float(np.nanmax(result.finished_s) - arrival[0])
    return LoadCandidate(
        unit=unit,
        ttft_s=_latency(ttft),
        e2e_s=_latency(e2e),
        busy=min(1.0, result.busy_s / replicas / span) if span > 0 else 0.0,
    )


def _latency(seconds: Float64) -> LoadLatency:
    p50, p99 = np.nanquantile(seconds, [0.5, 0.99])
    return LoadLatency(p50=float(p50), p99=float(p99))
