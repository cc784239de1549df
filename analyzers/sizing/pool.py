"""Blocks of the pool by the engine's own capacity formula: how many one request counts for, and how many there are.

What a request really takes, step by step, is the bookkeeping's business (`bookkeeping.smallest_pool`). Every block of
every group comes from one pool. Facts of `vllm/v1/core/kv_cache_utils.py` (`get_max_concurrency_for_kv_cache_config`,
`get_kv_cache_capacity`) and of each spec's memory rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvtune.analyzers.layout import KVCacheGroup
from kvtune.analyzers.sizing.releases import Release

TOKENS_FROM_CONCURRENCY_SINCE: Release = (0, 24)
"""From here on the logged tokens are concurrency x longest sequence; before, blocks per group x block."""


def blocks_per_request(
    groups: Sequence[KVCacheGroup],
    length: int,
    *,
    num_speculative_tokens: int = 0,
    max_num_batched_tokens: int = 8192,
    exports: bool = False,
) -> int:
    """Blocks that the engine reckons for a request of `length` tokens when it logs how many the pool holds.

    A recurrent state needs two blocks in mode `align` (the state it goes on from and the one it writes), one for
    each draft token, and one for an exported state.
    """
    total = 0
    for group in groups:
        if group.kind == "mamba" and group.mode == "align":
            blocks = 2 + num_speculative_tokens + int(exports)
        elif group.kind == "mamba" and group.mode == "none":
            blocks = 1 + num_speculative_tokens
        elif not group.cacheable:
            blocks = 1
        elif group.kind == "sliding_window" and group.window is not None:
            blocks = _ceil(min(group.window - 1 + max_num_batched_tokens, length), group.block_size) + 1
        elif group.kind == "chunked_local" and group.window is not None:
            blocks = _ceil(min(group.window + max_num_batched_tokens, length), group.block_size)
        else:
            blocks = _ceil(length, group.block_size)
        total += blocks * group.count
    return total


def num_blocks_from_capacity(
    release: Release,
    groups: Sequence[KVCacheGroup],
    per_request: int,
    tokens: int,
    length: int,
    concurrency: float,
) -> int | None:
    """The engine's `num_gpu_blocks`, recovered from its capacity line; None where no count gives that line.

    Args:
        per_request: blocks of one request of `length` tokens. tokens, concurrency: as logged.
    """
    if release >= TOKENS_FROM_CONCURRENCY_SINCE:
        blocks = round(tokens * per_request / length)
        candidates = range(max(blocks - 1, 1), blocks + 2)
        fitting = [n for n in candidates if int(n / per_request * length) == tokens]
    else:
        count = sum(group.count for group in groups)
        smallest = min(group.block_size for group in groups)
        least = tokens // smallest * count
        fitting = [n for n in range(least, least + count) if round(n / per_request, 2) == concurrency]
    return fitting[0] if len(fitting) == 1 else None


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
