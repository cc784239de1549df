"""Fits `LinearStepTimes` by weighted non-negative least squares, and is honest about the error.

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

from kvtune.analyzers.step_times import FEATURES, LinearStepTimes, StepShape, StepTimesError, StepTimesInfo

Float64 = npt.NDArray[np.float64]

LEAST_BATCHES = 12


@dataclass(frozen=True)
class Timed:
    """Batches timed on a model with `layers[k]` layers of kind k: N shapes, N times in seconds."""

    layers: tuple[int, ...]
    shapes: Sequence[StepShape]
    seconds: Sequence[float]


def fit_step_times(
    shapes: Sequence[StepShape],
    seconds: Sequence[float],
    held_shapes: Sequence[StepShape],
    held_seconds: Sequence[float],
) -> LinearStepTimes:
    """Fits on the first batches, states the error on the held-out ones.

    Raises:
        ValueError: fewer than twelve batches to fit, none held out, or a time that is not positive.
    """
    return compose([Timed((), shapes, seconds)], Timed((), held_shapes, held_seconds), ())


def compose(timed: Sequence[Timed], held: Timed, layers: tuple[int, ...]) -> LinearStepTimes:
    """The cost of a model with `layers[k]` layers of kind k, out of models with some of them.

    Every coefficient is a fixed part and a part per layer of each kind, all fitted at once; the error is that on
    `held`, which a deeper model than any in `timed` makes a test of the composition.

    Raises:
        ValueError: as `fit_step_times`.
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
    error = StepTimesError(mean=float(errors.mean()), p90=float(np.quantile(errors, 0.9)))
    return LinearStepTimes(
        tuple(coefficients.tolist()), StepTimesInfo(source="engine", error=error), len(errors)
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
