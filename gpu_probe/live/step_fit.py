"""Step times out of what a client saw of a server: seconds of known steps, fitted and judged on held-out prompts.

A time to first token is a request's own time outside steps and that of its prefill steps; a gap between two events
of a stream is that of one step. Knows shapes and seconds; no server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvtune.analyzers.fitted_cost import SERVER_SLACK, FittedStepCost
from kvtune.analyzers.step_times import LinearStepTimes, StepShape
from kvtune.analyzers.step_times.linear import beyond_limits
from kvtune.analyzers.step_times.nonnegative import nonnegative_least_squares
from kvtune.tokenization.trace import Float64

KNOTS = (64, 256, 1_024)
"""Prompt tokens of a step at which the time of one more token may change."""


@dataclass(frozen=True)
class Observed:
    """Seconds of some steps, as a client saw them.

    Attributes:
        requests: how often the time of a request outside its steps is in them: 1 for a time to first token.
    """

    steps: tuple[StepShape, ...]
    requests: int
    seconds: float


@dataclass(frozen=True)
class ServerFit:
    """`times` of a server, and `request_s`, the seconds of a request outside its steps."""

    times: LinearStepTimes
    request_s: float

    def predict(self, observed: Observed) -> float:
        """The seconds that these steps should take."""
        return observed.requests * self.request_s + sum(map(self.times.step_s, observed.steps))


def fit_server(
    fitted: Sequence[Observed], held_out: Sequence[Observed], *, longest: int, device: str
) -> FittedStepCost:
    """Fit on some observations, state the error on the others.

    Args:
        longest: tokens of the longest prompt. device: what was measured, in words.
    """
    knots = [knot for knot in KNOTS if knot < longest / 2]
    seconds = np.array([row.seconds for row in fitted])
    matrix = np.array([_features(row, knots) for row in fitted])
    solution = nonnegative_least_squares(matrix / seconds[:, None], np.ones(len(seconds))).tolist()
    step, pair, decode, context, request, *slopes = solution
    bends = tuple(
        (knot, after - before) for knot, before, after in zip(knots, slopes, slopes[1:], strict=False)
    )
    times = LinearStepTimes((step, slopes[0], pair, decode, context, 0.0), bends=bends)
    fit = ServerFit(times, request)
    errors = np.abs(np.array([fit.predict(row) / row.seconds for row in held_out]) - 1)
    mean, p90 = float(errors.mean()), float(np.quantile(errors, 0.9))
    reason = beyond_limits(mean, p90, len(errors), SERVER_SLACK)
    return FittedStepCost(
        step_s=step,
        prefill_token_s=slopes[0],
        attended_pair_s=pair,
        decode_sequence_s=decode,
        context_token_s=context,
        prefill_sequence_s=0.0,
        step_cost_tokens=times.step_overhead_tokens,
        mean_error=mean,
        p90_error=p90,
        median_error=float(np.median(errors)),
        held_out=len(errors),
        longest_context_tokens=longest,
        device=device,
        rung="L3",
        covers="model",
        layers=0,
        token_bends=bends,
        request_s=request,
        extrapolates=reason is None,
        reason=reason,
    )


def _features(row: Observed, knots: Sequence[int]) -> Float64:
    """float64[6 + K]: steps, attended pairs, decode tokens, their context, requests; then prompt tokens by the
    stretch of their step that they fall into."""
    edges = np.array([0, *knots, np.inf])
    tokens = np.array([shape.prefill_tokens for shape in row.steps], dtype=np.float64)
    stretches = np.clip(tokens[:, None] - edges[:-1], 0, np.diff(edges)).sum(axis=0)
    counts = [
        len(row.steps),
        sum(shape.attended_pairs for shape in row.steps),
        sum(shape.decode_tokens for shape in row.steps),
        sum(shape.decode_context for shape in row.steps),
        row.requests,
    ]
    return np.concatenate([np.array(counts, dtype=np.float64), stretches])
