"""Step overhead: what one more prefill step costs beyond its tokens.

A step of k tokens takes t(k); as part of a long prefill its tokens take k times m. The overhead in tokens is
(t(k) - k m) / m. It depends on k: a mixture of experts reads nearly all experts for 64 tokens, hardly any for one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvtune.analyzers.step_times.model import StepTimes

LONG_PREFILL = (2048, 8192)
"""Tokens of the two steps, on an empty cache, whose difference gives the time of a token in a long prefill."""

SMALL_STEPS = (16, 64, 256)
"""Tokens of the steps that a finer match unit adds: most have fewer than 300."""

PLAUSIBLE_OVERHEAD = (30, 4_000)
"""Tokens, [low, high]: measured kernels give 8 to 270 for dense models of 27B and 700 to 1,900 for mixtures of
experts; published TTFT tables give 3,900 for the largest."""


class Overhead(NamedTuple):
    """Step overhead on an idle server.

    Attributes:
        low, high: tokens, over steps of `SMALL_STEPS` tokens; 0 where a step costs no more than its tokens, infinite
            where tokens cost nothing.
        seconds: of the step of 64 tokens, beyond its tokens.
    """

    low: float
    high: float
    seconds: float


def token_s(times: StepTimes) -> float:
    """Seconds of one token in a long prefill."""
    short, long = LONG_PREFILL
    seconds = times.prefill_s(np.zeros(2, dtype=np.int64), np.array(LONG_PREFILL, dtype=np.int64))
    return float(seconds[1] - seconds[0]) / (long - short)


def step_overhead(times: StepTimes) -> Overhead:
    """What a step costs beyond its tokens."""
    token = token_s(times)
    tokens = np.array(SMALL_STEPS, dtype=np.int64)
    extra = np.maximum(0.0, times.prefill_s(np.zeros_like(tokens), tokens) - tokens * token)
    if token <= 0:
        return Overhead(np.inf, np.inf, float(extra[1]))
    return Overhead(float(extra.min()) / token, float(extra.max()) / token, float(extra[1]))
