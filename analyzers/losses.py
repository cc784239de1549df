"""Where shared tokens went that were not reused: each limit's share per request, summing exactly to what was shared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.replay import ReplayInput, ReplayResult
from kvtune.analyzers.sweep import replay_caches
from kvtune.tokenization.trace import Int32, Int64


def losses_by_request(
    config: EngineConfig,
    inputs: ReplayInput,
    replica: Int32 | None,
    shared: Int64,
    result: ReplayResult,
    *,
    grid: int,
) -> dict[str, Int64]:
    """Losses of one replay, int64[R] tokens each, by the report's names; with the hits they sum to `shared`.

    `granularity`: from the shared length down to its last multiple of `grid`. `evicted`: what the same replay
    hits more with an unlimited pool. `no_recurrent_state`: the rest, where no state was kept.
    """
    on_grid = shared // grid * grid
    kept = result.hit_tokens
    if config.num_blocks is not None and int(result.evicted_blocks.sum()):
        unlimited = replay_caches(replace(config, num_blocks=None), inputs, replica)
        kept = np.clip(unlimited.hit_tokens, result.hit_tokens, np.maximum(on_grid, result.hit_tokens))
    return {
        "granularity": shared - np.maximum(on_grid, result.hit_tokens),
        "no_recurrent_state": np.maximum(on_grid, result.hit_tokens) - kept,
        "evicted": kept - result.hit_tokens,
    }
