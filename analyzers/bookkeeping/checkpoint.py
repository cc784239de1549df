"""Where the reusable Mamba states of a prompt lie, and whether a backend can export one from inside a chunk.

Sources: `vllm/v1/kv_cache_interface.py: get_mamba_prefill_checkpoint_position, is_mamba_prefill_checkpoint_valid`,
and before 0.32 `sched/scheduler: _mamba_block_aligned_split` and `single_type_kv_cache_manager: MambaManager`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtune.analyzers.profiles import ReleaseProfile


@dataclass(frozen=True)
class Boundary:
    """A rule that gives the last position on a grid: leave some tokens over, floor, go some grid steps back.

    Attributes:
        leave: tokens to leave over first. steps: grid steps to go back after flooring.
    """

    leave: int
    steps: int

    def of(self, num_tokens: int, grid: int) -> int:
        """The position for `num_tokens` on multiples of `grid`; 0 if there is none."""
        position = ((num_tokens - self.leave) // grid - self.steps) * grid
        return position if position > 0 else 0


class CheckpointRules:
    """Positions of reusable states under one release and drafter.

    Attributes:
        last_block: the last block boundary that can be resumed at: no chunk runs past it without ending there.
        tail: the prompt's last unit boundary that can be resumed at, where a chunk ends.
        exported: the position whose state a backend exports from the chunk that ends at a length.
    """

    __slots__ = ("_by_group", "_lowered", "_plain", "exported", "last_block", "tail")

    def __init__(self, profile: ReleaseProfile, *, drop: bool, lookahead: int) -> None:
        # A block drop leaves tokens to compute anyway; without it at least the last one is left, and the tokens
        # that the hash looks ahead.
        over = max(1, lookahead)
        self._plain = Boundary(over if profile.boundaries_leave_last_token else 0, 0)
        self._lowered = Boundary(0, 1)
        self._by_group = profile.mamba_tail_drop == "group"
        self.last_block = self._lowered if drop else self._plain
        self.tail = self._lowered if drop and profile.dropped_tail_is_one_lower else self._plain
        self.exported = self.last_block
        if not profile.boundaries_leave_last_token:
            self.exported = Boundary(1, 1 if drop else 0)
        if profile.mamba_tail_drop == "never" or (profile.mamba_tail_drop == "engine" and not drop):
            self._lowered = self._plain

    def keyed_tail(self, group_drops: bool) -> Boundary:
        """The chunk end that a group keys as the prompt tail. It is `tail`, but for drafters in older releases."""
        if self._by_group:
            return self._lowered if group_drops else self._plain
        return self._lowered


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
