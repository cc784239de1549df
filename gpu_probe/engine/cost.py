"""`StepCost`: seconds of a step from its shape, fitted by weighted non-negative least squares; honest about its error.

Relative errors are weighted alike, so that short decode steps count as much as long prefills. What was fitted is
tried on batches that were held out; `extrapolates` says whether the error is small enough to be believed beyond
them. Knows shapes and times; not how they were obtained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvtune.analyzers.step_cost import ASSUMED
from kvtune.gpu_probe.engine.clocks import StepShape

Float64 = npt.NDArray[np.float64]

FEATURES = (
    "step",
    "prefill token",
    "attended pair",
    "decode token",
    "decode context token",
    "prefill sequence",
)
"""What a coefficient is the seconds of, in order."""

LARGEST_MEAN_ERROR = 0.10
LARGEST_P90_ERROR = 0.20
"""Held-out relative errors up to which a model may be used outside what it was fitted on."""


@dataclass(frozen=True)
class StepCost:
    """Coefficients in seconds, in the order of `FEATURES`; errors are relative, on held-out batches."""

    coefficients: tuple[float, ...]
    mean_error: float = 0.0
    p90_error: float = 0.0
    held_out: int = 0

    def seconds(self, shape: StepShape) -> float:
        """Predicted time of one step."""
        return sum(a * b for a, b in zip(self.coefficients, shape.features(), strict=True))

    @property
    def extrapolates(self) -> bool:
        """Whether the held-out error allows use beyond the fitted batches."""
        return (
            self.held_out > 0
            and self.mean_error <= LARGEST_MEAN_ERROR
            and self.p90_error <= LARGEST_P90_ERROR
        )

    @property
    def step_cost_tokens(self) -> float | None:
        """What one more step costs, in prefilled tokens: the `--step-cost-tokens` of this machine."""
        step, token = self.coefficients[0] + self.coefficients[5], self.coefficients[1]
        return step / token if token > 0 else None


NOMINAL = StepCost(
    (
        ASSUMED.step_s,
        ASSUMED.prefill_token_s,
        ASSUMED.attended_pair_s,
        ASSUMED.decode_sequence_s,
        ASSUMED.context_token_s,
        ASSUMED.prefill_sequence_s,
    )
)
"""The `model` clock's: the costs that replays by timestamps assume. No machine's measurement."""


def fit_step_cost(shapes: Sequence[StepShape], seconds: Sequence[float], hold_out_every: int = 3) -> StepCost:
    """Fits on two of three batches, states the error on the third.

    Raises:
        ValueError: fewer than twelve batches, or a time that is not positive.
    """
    if len(shapes) < 12 or min(seconds) <= 0:
        raise ValueError("a step-cost model needs at least twelve timed batches")
    matrix = np.array([shape.features() for shape in shapes])
    times = np.array(seconds)
    held = np.arange(len(times)) % hold_out_every == hold_out_every - 1
    fitted = nonnegative_least_squares(matrix[~held] / times[~held, None], np.ones(int((~held).sum())))
    errors = np.abs(matrix[held] @ fitted / times[held] - 1)
    return StepCost(
        tuple(fitted.tolist()), float(errors.mean()), float(np.quantile(errors, 0.9)), int(held.sum())
    )


def nonnegative_least_squares(matrix: Float64, target: Float64, rounds: int = 100) -> Float64:
    """argmin |matrix x - target| with x >= 0, by active sets (Lawson and Hanson, 1974)."""
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    scaled = matrix / scale
    x = np.zeros(matrix.shape[1])
    passive = np.zeros(matrix.shape[1], dtype=bool)
    for _ in range(rounds):
        gradient = scaled.T @ (target - scaled @ x)
        gradient[passive] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= 1e-12:
            break
        passive[best] = True
        while True:
            trial = np.zeros_like(x)
            trial[passive] = np.linalg.lstsq(scaled[:, passive], target, rcond=None)[0]
            if trial[passive].min() > 0:
                break
            shrinking = passive & (trial <= 0)
            ratio = (x[shrinking] / (x[shrinking] - trial[shrinking])).min()
            x += ratio * (trial - x)
            passive &= x > 1e-15
            x[~passive] = 0
            if not passive.any():
                trial = np.zeros_like(x)
                break
        x = trial
    solution: Float64 = x / scale
    return solution
