"""`Validation`: what the best candidates did when they were executed; the report's field of that name.

Knows the shape of measured results; neither how candidates are run nor how results are shown. Token counts
unless the name says otherwise; times are seconds.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from kvtune.analyzers.fitted_cost import FittedStepCost


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds over the requests of a run."""

    p50: float
    p90: float
    p99: float


class ValidatedCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """One unit, executed.

    Attributes:
        matched_tokens: found in the cache; recomputed_tokens: prefilled; copied_tokens: copied on write.
        ttft_s, itl_s, tpot_s, e2e_s: time to first token, inter-token latency, time per output token and
            end-to-end latency; None where the rung does not produce it.
        hash_cpu_s: CPU seconds spent hashing blocks.
        goodput_rps: requests a second that met all stated SLOs; None without SLOs.
        predicted_tokens: matched tokens that the bookkeeping predicts for the same requests.
        hash_share: of hashing in the time of hashing and steps.
        largest_rate: the largest multiple of the trace's arrival rate that was found to meet the SLOs; 0 where the
            trace's own rate misses them. missed_rate: the smallest one that was found to miss them; None where the
            ceiling of the search was met, or the search ended before.
        ttft_change: of TTFT against the current unit, a fraction (negative is faster), with its 95% interval;
            None for that unit itself, and where fewer than two pairs of runs were measured.
        ttft_differs: that change is beyond chance (Holm over candidates) and beyond the minimum effect.
    """

    unit: int
    matched_tokens: int
    recomputed_tokens: int
    copied_tokens: int | None = None
    ttft_s: Percentiles | None = None
    itl_s: Percentiles | None = None
    tpot_s: Percentiles | None = None
    e2e_s: Percentiles | None = None
    hash_cpu_s: float | None = None
    prefill_steps: int | None = None
    preemptions: int | None = None
    evicted_blocks: int | None = None
    goodput_rps: float | None = None
    predicted_tokens: int | None = None
    hash_share: float | None = None
    largest_rate: float | None = None
    missed_rate: float | None = None
    ttft_change: float | None = None
    ttft_change_ci95: tuple[float, float] | None = None
    ttft_differs: bool | None = None


class RateSearch(msgspec.Struct, frozen=True, kw_only=True):
    """How the candidates' `largest_rate` was found, the same way for all.

    Attributes:
        method: `executed` on the device, or `rehearsed`: the bookkeeping alone under step costs.
        qualifying_share: of all requests that must meet every SLO; refused and unfinished ones do not.
        ceiling: the largest multiple tried. resolution: the ratio of missed to met rate at which a search ends.
        runs: of each candidate at most. complete: whether time allowed every search to end.
    """

    method: Literal["executed", "rehearsed"]
    qualifying_share: float
    ceiling: float
    resolution: float
    runs: int
    complete: bool


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """Whether prediction and execution agree. `order` is the order in which candidates were run.

    `requests` of the trace's `trace_requests` were run, from the first on. `notes` say what the figures rest on.
    `step_cost`: what steps cost here, fitted under a measured clock. `rate_search`: None where no largest rate was
    looked for.
    """

    rung: str
    device: str
    clock: str
    order: str
    runs: int
    slo: dict[str, float] | None = None
    candidates: tuple[ValidatedCandidate, ...]
    agrees: bool
    differences: tuple[str, ...] = ()
    requests: int | None = None
    trace_requests: int | None = None
    notes: tuple[str, ...] = ()
    step_cost: FittedStepCost | None = None
    rate_search: RateSearch | None = None
