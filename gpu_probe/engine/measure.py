"""What runs say of a candidate: latencies, hashing, goodput.

Knows records of runs; not how they came about. TPOT of a request is (last - first token) / (tokens - 1): a
preempted decode's stall belongs to it, a preempted prefill's to TTFT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from kvtune.analyzers.validation import ValidatedCandidate
from kvtune.gpu_probe.engine.runner import RunRecord
from kvtune.gpu_probe.live.latency import percentiles

Float64 = npt.NDArray[np.float64]


def ttft(record: RunRecord) -> Float64:
    """Seconds from arrival to the first token, NaN for refused requests."""
    return record.first_token - record.arrival


def tpot(record: RunRecord) -> Float64:
    """Seconds per token after the first, NaN for requests of one token."""
    return np.array(
        [
            (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else np.nan
            for times in record.token_times
        ]
    )


def qualifying(record: RunRecord, slo: Mapping[str, float]) -> int:
    """Requests that meet all objectives (`ttft`, `tpot`, `e2e` in seconds); one that never finished does not."""
    figures = {"ttft": ttft(record), "tpot": tpot(record), "e2e": record.finished - record.arrival}
    good = ~np.isnan(record.finished)
    for name, limit in slo.items():
        values = figures[name]
        # A request of one token has no TPOT to miss.
        good &= np.isnan(values) | (values <= limit) if name == "tpot" else values <= limit
    return int(good.sum())


def summarize(
    unit: int,
    records: Sequence[RunRecord],
    slo: Mapping[str, float],
    *,
    predicted: int | None,
    deterministic: bool,
) -> ValidatedCandidate:
    """One candidate over its runs. Counts are the first run's; latencies are pooled.

    `deterministic`: no clock may show, so what hashing took on this machine is left out.
    """
    first = records[0]
    gaps = (gap for record in records for times in record.token_times for gap in np.diff(times).tolist())

    def pooled(values: Callable[[RunRecord], Float64]) -> list[float | None]:
        together = np.concatenate([values(record) for record in records])
        return list(together[~np.isnan(together)].tolist())

    duration = sum(record.duration_s for record in records)
    step_s = sum(sum(record.step_s) for record in records)
    hash_s = sum(record.hash_s for record in records)
    return ValidatedCandidate(
        unit=unit,
        matched_tokens=int(first.hit_tokens.sum()),
        recomputed_tokens=int(first.prefilled_tokens.sum()),
        copied_tokens=first.copied_tokens,
        ttft_s=percentiles(pooled(ttft)),
        itl_s=percentiles(gaps),
        tpot_s=percentiles(pooled(tpot)),
        e2e_s=percentiles(pooled(lambda record: record.finished - record.arrival)),
        hash_cpu_s=None if deterministic else hash_s / len(records),
        prefill_steps=int(first.prefill_steps.sum()),
        preemptions=int(first.preemptions.sum()),
        evicted_blocks=int(first.evicted_blocks.sum()),
        goodput_rps=sum(qualifying(record, slo) for record in records) / duration
        if slo and duration > 0
        else None,
        predicted_tokens=predicted,
        hash_share=None if deterministic or step_s <= 0 else hash_s / (step_s + hash_s),
    )
