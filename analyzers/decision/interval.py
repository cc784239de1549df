"""A percentile interval for a sum of paired per-request gains, resampling whole sessions."""

from __future__ import annotations

import numpy as np

from kvtune.tokenization.trace import Int32, Int64

DRAWS = 2000
LEAST_CLUSTERS = 2
"""With one conversation alone, requests are drawn instead."""

_CELLS_AT_ONCE = 2_000_000


def session_interval(gains: Int64, sessions: Int32, seed: int = 0, draws: int = DRAWS) -> tuple[int, int]:
    """The 95% percentile interval of `gains.sum()` (tokens) when sessions are drawn with replacement.

    Args:
        gains: int64[R], tokens gained per request; sessions: int32[R], dense session numbers.
    """
    if len(np.unique(sessions)) < LEAST_CLUSTERS:
        sessions = np.arange(len(gains), dtype=np.int32)  # one conversation tells nothing of others
    per_session = np.bincount(sessions, weights=gains).astype(np.int64)
    count = len(per_session)
    if count == 0 or not per_session.any():
        return 0, 0
    generator = np.random.default_rng(seed)
    totals = np.empty(draws, dtype=np.int64)
    step = max(1, _CELLS_AT_ONCE // count)
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        totals[start : start + rows] = per_session[generator.integers(0, count, (rows, count))].sum(axis=1)
    low, high = np.percentile(totals, [2.5, 97.5])
    return int(np.floor(low)), int(np.ceil(high))
