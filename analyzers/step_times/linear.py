"""`LinearStepTimes`: a step's time as a sum of its parts. What is assumed, and what fits of measured steps give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvtune.analyzers.step_times.info import StepTimesInfo
from kvtune.analyzers.step_times.overhead import step_overhead, token_s
from kvtune.analyzers.step_times.shape import StepShape, attended_pairs
from kvtune.tokenization.trace import Float64, Int64

LARGEST_MEAN_ERROR = 0.10
LARGEST_P90_ERROR = 0.20
"""Held-out relative errors up to which a fit may be used outside what it was fitted on."""


UNKNOWN = StepTimesInfo(source="none")
"""Of coefficients without a history."""


@dataclass(frozen=True)
class LinearStepTimes:
    """Seconds of a step's parts.

    Attributes:
        coefficients: seconds of one of each of `FEATURES`: a step; a prompt token computed; a pair of a prefilled
            token and a position before or at it; a generated token; a position that a generated token reads; a
            request with prompt tokens in the step.
        info: where they come from.
        held_out: steps that `info.error` was found on.
        bends: (tokens, seconds) pairs: beyond so many prompt tokens in one step, each takes so many seconds more; less
            where negative. A small step reads all weights, a large one is bound by arithmetic.
    """

    coefficients: tuple[float, ...]
    info: StepTimesInfo = UNKNOWN
    held_out: int = 0
    bends: tuple[tuple[int, float], ...] = ()

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step."""
        if not (shape.prefill_requests or shape.decode_tokens):
            return 0.0
        step, token, pair, decode, context, request = self.coefficients
        bent = sum(
            (shape.prefill_tokens - knot) * more for knot, more in self.bends if shape.prefill_tokens > knot
        )
        return (
            step
            + bent
            + shape.prefill_tokens * token
            + shape.attended_pairs * pair
            + shape.decode_tokens * decode
            + shape.decode_context * context
            + shape.prefill_requests * request
        )

    def prefill_s(self, start: Int64, tokens: Int64) -> Float64:
        """Seconds of steps that hold one chunk each."""
        step, token, pair, _, _, request = self.coefficients
        seconds: Float64 = step + request + tokens * token + attended_pairs(start, tokens) * pair
        for knot, more in self.bends:
            seconds = seconds + np.maximum(0, tokens - knot) * more
        return np.asarray(seconds, dtype=np.float64)

    def decode_s(self, steps: int, requests: int, context: int) -> float:
        """Seconds of a run of decode steps."""
        step, _, _, decode, position, _ = self.coefficients
        flat = step + requests * decode + context * position
        return steps * flat + requests * position * (steps * (steps - 1) // 2)

    @property
    def step_overhead_tokens(self) -> float | None:
        """What one more prefill step costs, in prefilled tokens; None where tokens cost nothing."""
        if self.bends:
            token, overhead = token_s(self), step_overhead(self)
            return overhead.seconds / token if token > 0 else None
        step, token = self.coefficients[0] + self.coefficients[5], self.coefficients[1]
        return step / token if token > 0 else None

    @property
    def reason(self) -> str | None:
        """Why the held-out error forbids use beyond the fitted steps; None where it does not."""
        error = self.info.error
        return beyond_limits(error.mean if error else 0.0, error.p90 if error else 0.0, self.held_out)

    @property
    def extrapolates(self) -> bool:
        """Whether the held-out error allows use beyond the fitted steps."""
        return self.reason is None


def held_out_error(mean_error: float, p90_error: float) -> str:
    """Relative errors on steps that took no part in a fit, in words."""
    return f"held-out error: mean {mean_error:.1%}, p90 {p90_error:.1%}"


def beyond_limits(mean_error: float, p90_error: float, held_out: int, slack: int = 1) -> str | None:
    """Why a fit with these held-out errors says nothing beyond its steps; None where it may be used.

    Args:
        slack: by how much the limits are wider for what was timed than for single steps.
    """
    largest_mean, largest_p90 = slack * LARGEST_MEAN_ERROR, slack * LARGEST_P90_ERROR
    if held_out and mean_error <= largest_mean and p90_error <= largest_p90:
        return None
    return f"{held_out_error(mean_error, p90_error)}, above {largest_mean:.0%} or {largest_p90:.0%}"


ASSUMED = LinearStepTimes(
    (4e-3, 4e-3 / 128, 1e-9, 2e-5, 1e-9, 0.0),
    StepTimesInfo(source="none", provenance="assumed: 4 ms a step, as much as 128 prefilled tokens"),
)
"""Nobody's measurement: the order of a 9B-class model on one data-centre GPU. They decide how far requests overlap in
replays by timestamps, hence which states are there in time; they never decide what a rule of the engine does."""
