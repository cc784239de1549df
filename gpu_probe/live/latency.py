"""Latencies out of event times: TTFT, ITL, TPOT, end to end, and goodput.

A streamed event may hold more than one token, so TPOT counts tokens and ITL is the time between events. Seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from kvtune.analyzers.validation import Percentiles
from kvtune.gpu_probe.live.answer import Answer


@dataclass(frozen=True)
class RequestLatency:
    """One request; None where it has too few tokens for the figure."""

    ttft: float
    tpot: float | None
    e2e: float
    itl: tuple[float, ...]


def latency_of(answer: Answer) -> RequestLatency | None:
    """None for an answer without output."""
    if not answer.events:
        return None
    first, last = answer.events[0], answer.events[-1]
    tokens = answer.completion_tokens or 0
    return RequestLatency(
        ttft=first - answer.sent,
        tpot=(last - first) / (tokens - 1) if tokens > 1 else None,
        e2e=answer.finished - answer.sent,
        itl=tuple(np.diff(answer.events).tolist()),
    )


def percentiles(values: Iterable[float | None]) -> Percentiles | None:
    """None where there is no value."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    p50, p90, p99 = np.percentile(known, (50, 90, 99)).tolist()
    return Percentiles(p50=p50, p90=p90, p99=p99)


def goodput(latencies: Iterable[RequestLatency], slo: Mapping[str, float], wall_s: float) -> float | None:
    """Requests per second that met every SLO (`ttft`, `tpot`, `e2e`); None without SLOs or time."""
    if not slo or wall_s <= 0:
        return None
    return sum(meets(latency, slo) for latency in latencies) / wall_s


def meets(latency: RequestLatency, slo: Mapping[str, float]) -> bool:
    """Whether a request meets every objective; a figure that it is too short to have is met."""
    return all((value := getattr(latency, name)) is None or value <= limit for name, limit in slo.items())
