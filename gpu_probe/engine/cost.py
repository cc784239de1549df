"""`StepCost`: seconds of a step from its shape, fitted by weighted non-negative least squares; honest about its error.

Relative errors are weighted alike, so that short decode steps count as much as long prefills. What was fitted is
tried on batches that were held out; `extrapolates` says whether the error is small enough to be believed beyond
them. Times of models of several depths give the cost of each kind of layer, and out of these a deeper model's.
Knows shapes and times; not how they were obtained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvtune.analyzers.fitted_cost import beyond_limits
from kvtune.analyzers.step_cost import ASSUMED, StepCostModel
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

LEAST_BATCHES = 12


@dataclass(frozen=True)
class StepCost:
    """Coefficients in seconds, in the order of `FEATURES`; errors are relative, on held-out batches."""

    coefficients: tuple[float, ...]
    mean_error: float = 0.0
    p90_error: float = 0.0
    held_out: int = 0

    @classmethod
    def of(cls, model: StepCostModel) -> StepCost:
        """The same seconds, with no error known."""
        return cls(
            (
                model.step_s,
                model.prefill_token_s,
                model.attended_pair_s,
                model.decode_sequence_s,
                model.context_token_s,
                model.prefill_sequence_s,
            )
        )

    def seconds(self, shape: StepShape) -> float:
        """Predicted time of one step."""
        return sum(a * b for a, b in zip(self.coefficients, shape.features(), strict=True))

    @property
    def reason(self) -> str | None:
        """Why the held-out error forbids use beyond the fitted batches; None where it does not."""
        return beyond_limits(self.mean_error, self.p90_error, self.held_out)

    @property
    def extrapolates(self) -> bool:
        """Whether the held-out error allows use beyond the fitted batches."""
        return self.reason is None

    @property
    def step_cost_tokens(self) -> float | None:
        """What one more step costs, in prefilled tokens: the `--step-cost-tokens` of this machine."""
        step, token = self.coefficients[0] + self.coefficients[5], self.coefficients[1]
        return step / token if token > 0 else None


NOMINAL = StepCost.of(ASSUMED)
"""The `model` clock's: the costs that replays by timestamps assume. No machine's measurement."""


@dataclass(frozen=True)
class Timed:
    """Batches timed on a model with `layers[k]` layers of kind k: N shapes, N times in seconds."""

    layers: tuple[int, ...]
    shapes: Sequence[StepShape]
    seconds: Sequence[float]


def fit_step_cost(
    shapes: Sequence[StepShape],
    seconds: Sequence[float],
    held_shapes: Sequence[StepShape],
    held_seconds: Sequence[float],
) -> StepCost:
    """Fits on the first batches, states the error on the held-out ones.

    Raises:
        ValueError: fewer than twelve batches to fit, none held out, or a time that is not positive.
    """
    return compose([Timed((), shapes, seconds)], Timed((), held_shapes, held_seconds), ())


def compose(timed: Sequence[Timed], held: Timed, layers: tuple[int, ...]) -> StepCost:
    """The cost of a model with `layers[k]` layers of kind k, out of models with some of them.

    Every coefficient is a fixed part and a part per layer of each kind, all fitted at once; the error is that on
    `held`, which a deeper model than any in `timed` makes a test of the composition.

    Raises:
        ValueError: as `fit_step_cost`.
    """
    times = np.concatenate([np.asarray(each.seconds, dtype=np.float64) for each in timed])
    wanted = np.asarray(held.seconds, dtype=np.float64)
    if len(times) < LEAST_BATCHES or not len(wanted) or min(times.min(), wanted.min()) <= 0:
        raise ValueError("a step-cost model needs at least twelve timed batches, and some to try it on")
    matrix = np.concatenate([_features(each) for each in timed])
    fitted = nonnegative_least_squares(matrix / times[:, None], np.ones(len(times)))
    errors = np.abs(_features(held) @ fitted / wanted - 1)
    parts = fitted.reshape(len(layers) + 1, len(FEATURES))
    coefficients = parts[0] + np.array(layers, dtype=np.float64) @ parts[1:]
    return StepCost(
        tuple(coefficients.tolist()), float(errors.mean()), float(np.quantile(errors, 0.9)), len(errors)
    )


def _features(timed: Timed) -> Float64:
    """float64[N, (K + 1) * 6]: the shapes' features, and K times again by the number of layers of each kind."""
    shapes = np.array([shape.features() for shape in timed.shapes])
    return np.concatenate([shapes, *(count * shapes for count in timed.layers)], axis=1)


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
