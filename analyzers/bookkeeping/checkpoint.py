"""Where the reusable Mamba states of a prompt lie, and whether a backend can export one from inside a chunk.

Sources: `vllm/v1/kv_cache_interface.py: get_mamba_prefill_checkpoint_position, is_mamba_prefill_checkpoint_valid`,
and before 0.32 `sched/scheduler: _mamba_block_aligned_split` and `single_type_kv_cache_manager: MambaManager`.
"""

from __future__ import annotations

from kvtune.analyzers.profiles import ReleaseProfile


class CheckpointRules:
    """Positions of reusable states, each on a grid of tokens, under one release and drafter."""

    __slots__ = ("_drop", "_drops_tail", "_leaves_last", "_lookahead", "_tail_drop")

    def __init__(self, profile: ReleaseProfile, *, drop: bool, lookahead: int) -> None:
        self._leaves_last = profile.boundaries_leave_last_token
        self._drop = drop
        self._drops_tail = drop and profile.dropped_tail_is_one_lower
        self._tail_drop = profile.mamba_tail_drop
        self._lookahead = max(1, lookahead)

    def last_block(self, num_tokens: int, block_size: int) -> int:
        """The last block boundary that can be resumed at: no chunk runs past it without ending there."""
        return self._last(num_tokens, block_size, self._drop)

    def tail(self, num_prompt_tokens: int, unit: int) -> int:
        """The prompt's last unit boundary that can be resumed at, where a chunk ends."""
        return self._last(num_prompt_tokens, unit, self._drops_tail)

    def keyed_tail(self, num_prompt_tokens: int, unit: int, group_drops: bool) -> int:
        """The chunk end that is keyed as the prompt tail. It is `tail`, but for drafters in older releases."""
        drop = {"engine": self._drop, "group": group_drops, "never": False}[self._tail_drop]
        return self._last(num_prompt_tokens, unit, drop)

    def exported(self, num_tokens: int, grid: int) -> int:
        """The position whose state a backend exports from the chunk that ends at `num_tokens`."""
        if self._leaves_last:
            return self._last(num_tokens, grid, self._drop)
        return max((num_tokens - 1) // grid * grid - (grid if self._drop else 0), 0)

    def _last(self, num_tokens: int, grid: int, drop: bool) -> int:
        if drop:
            return max(num_tokens // grid * grid - grid, 0)
        return max((num_tokens - (self._lookahead if self._leaves_last else 0)) // grid * grid, 0)


def can_export(
    start: int, end: int, position: int, unit: int, block_size: int, alignment: int | None
) -> bool:
    """Whether a chunk [start, end) can hand out the state at `position`.

    It must start on a unit, hold a whole block boundary besides the block of the state that it started from, and
    `position` must lie at least a unit in and on the backend's alignment.
    """
    return (
        alignment is not None
        and start % unit == 0
        and -(-end // block_size) - 2 > (start - 1) // block_size
        and start + unit <= position
        and start < position < end
        and (position - start) % alignment == 0
    )
