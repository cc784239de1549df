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
from kvtune.analyzers.step_times.nonnegative import nonnegative_least_squares

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
