"""Non-negative least squares, for fits of step times: no part of a step takes less than nothing."""

from __future__ import annotations

import numpy as np

from kvtune.tokenization.trace import Float64


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
