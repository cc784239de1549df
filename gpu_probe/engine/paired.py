"""Paired comparison of runs: the pair of runs is the unit, never the request.

Requests of one run share its drift, so treating them as independent gives false certainty. A pair is one run of a
candidate and one of the base, close in an ABBA order; its value is the mean over requests of the logarithm of the
ratio. Student's t over pairs, Holm's step-down over candidates. Knows numbers only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

MINIMUM_EFFECT = 0.03
"""Relative differences below this are not called differences, however certain."""


@dataclass(frozen=True)
class PairedEffect:
    """A relative change of a latency against the base; fractions, negative is faster.

    `low`, `high`: 95% interval, infinite with fewer than two pairs. `p_value`: two-sided.
    """

    change: float
    low: float
    high: float
    p_value: float
    pairs: int


def paired_effect(pairs: Sequence[tuple[Float64, Float64]]) -> PairedEffect:
    """The effect over run pairs (base, candidate): latencies float64[R] of the same requests, NaN where none."""
    values = []
    for base, candidate in pairs:
        known = (base > 0) & (candidate > 0)
        if known.any():
            values.append(float(np.log(candidate[known] / base[known]).mean()))
    if not values:
        return PairedEffect(0.0, -math.inf, math.inf, 1.0, 0)
    mean = sum(values) / len(values)
    if len(values) < 2:
        return PairedEffect(math.expm1(mean), -math.inf, math.inf, 1.0, 1)
    freedom = len(values) - 1
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / freedom / len(values))
    if spread == 0:
        return PairedEffect(
            math.expm1(mean), math.expm1(mean), math.expm1(mean), float(mean == 0), len(values)
        )
    half = t_quantile(0.975, freedom) * spread
    p_value = 2 * (1 - t_distribution(abs(mean) / spread, freedom))
    return PairedEffect(
        math.expm1(mean), math.expm1(mean - half), math.expm1(mean + half), p_value, len(values)
    )


def holm(p_values: Sequence[float], level: float = 0.05) -> list[bool]:
    """Which hypotheses are rejected at a family-wise level (Holm, 1979)."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    rejected = [False] * len(p_values)
    for rank, index in enumerate(order):
        if p_values[index] > level / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected


def t_distribution(t: float, freedom: int) -> float:
    """P(T <= t) of Student's t, by the regularised incomplete beta function."""
    tail = 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))
    return 1 - tail if t >= 0 else tail


def t_quantile(probability: float, freedom: int) -> float:
    """The t with P(T <= t) = probability, for probability >= 0.5."""
    low, high = 0.0, 1.0
    while t_distribution(high, freedom) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_distribution(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """I_x(a, b) by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    tiny = 1e-300
    value = c = 1.0
    d = 0.0
    for step in range(300):
        half = step // 2
        if step == 0:
            numerator = 1.0
        elif step % 2 == 0:
            numerator = half * (b - half) * x / ((a + step - 1) * (a + step))
        else:
            numerator = -(a + half) * (a + b + half) * x / ((a + step - 1) * (a + step))
        d = 1 / max(abs(1 + numerator * d), tiny) * math.copysign(1, 1 + numerator * d)
        c = 1 + numerator / c
        c = c if abs(c) > tiny else tiny
        value *= c * d
        if abs(c * d - 1) < 1e-14 and step:
            break
    return front * (value - 1) / a
