"""A candidate's runs on a server as a row of the report.

Changes of TTFT are against the first candidate, the current unit: request by request within a pair of runs, the pair
being what counts (`paired`). Knows measurements and statistics; runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from kvtune.analyzers.validation import ValidatedCandidate
from kvtune.gpu_probe.engine.paired import MINIMUM_EFFECT, holm, paired_effect
from kvtune.gpu_probe.live.latency import goodput, latency_of, percentiles
from kvtune.gpu_probe.live.measure import Measured
from kvtune.gpu_probe.live.verdict import effective_unit
from kvtune.tokenization.trace import Float64


def candidate_rows(
    candidates: Sequence[Sequence[Measured]], slo: Mapping[str, float]
) -> tuple[ValidatedCandidate, ...]:
    """One row per candidate; `candidates` holds the runs of each, in order."""
    base, *others = candidates
    effects = [
        paired_effect([(_ttft(one), _ttft(two)) for one, two in zip(base, runs, strict=False)])
        for runs in others
    ]
    beyond_chance = holm([effect.p_value for effect in effects])
    rows = [_row(runs, slo) for runs in candidates]
    for place, (effect, certain) in enumerate(zip(effects, beyond_chance, strict=True), 1):
        measured = effect.pairs >= 2 and math.isfinite(effect.low)
        rows[place] = msgspec.structs.replace(
            rows[place],
            ttft_change=effect.change,
            ttft_change_ci95=(effect.low, effect.high) if measured else None,
            ttft_differs=certain and abs(effect.change) >= MINIMUM_EFFECT if measured else None,
        )
    return tuple(rows)


def _row(runs: Sequence[Measured], slo: Mapping[str, float]) -> ValidatedCandidate:
    """Token counts are of one run (the first), latencies of all of them."""
    first = runs[0]
    latencies = [
        latency for run in runs for answer in run.run.answers if answer and (latency := latency_of(answer))
    ]
    matched = int(first.hits.sum())
    search = next((run.search[0] for run in runs if run.search is not None and run.search[0].runs), None)
    return ValidatedCandidate(
        unit=effective_unit(first.config),
        matched_tokens=matched,
        recomputed_tokens=int(first.trace.prompt_tokens.sum()) - matched,
        ttft_s=percentiles(latency.ttft for latency in latencies),
        itl_s=percentiles(gap for latency in latencies for gap in latency.itl),
        tpot_s=percentiles(latency.tpot for latency in latencies),
        e2e_s=percentiles(latency.e2e for latency in latencies),
        preemptions=first.counters.preemptions,
        goodput_rps=goodput(latencies, slo, sum(run.run.wall_s for run in runs)),
        predicted_tokens=int(first.prediction.hits.sum()),
        largest_rate=None if search is None else search.met,
        missed_rate=None if search is None else search.missed,
    )


def _ttft(run: Measured) -> Float64:
    """float64[R]: of each request of the trace, NaN where there was no answer."""
    latencies = [None if answer is None else latency_of(answer) for answer in run.run.answers]
    return np.array([math.nan if latency is None else latency.ttft for latency in latencies])
