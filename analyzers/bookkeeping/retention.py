"""Which block boundaries keep a key: the retention interval, and the boundaries that are always kept.

Interval None is dense, 0 keeps only what a later request can be expected to resume at (replay boundaries and the
junction), N adds one boundary, or one window, every N tokens. Sources: `kv_cache_coordinator: replay_boundaries`,
`single_type_kv_cache_manager: reachable_block_mask`. Retention never makes a chunk end anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence


def replay_boundaries(num_prompt_tokens: int, scheduler_block: int, drop: bool) -> tuple[int, ...]:
    """Positions at which a request that repeats, or goes on from, a prompt can resume.

    Without a block drop the last token alone is recomputed. With it a hit ends one scheduler block lower; a resend
    and a longer prompt then end apart where the prompt is a whole number of blocks.
    """
    if not drop:
        return (num_prompt_tokens - 1,)
    resend = (num_prompt_tokens - 1) // scheduler_block * scheduler_block
    extension = num_prompt_tokens // scheduler_block * scheduler_block
    return tuple({max(resend - scheduler_block, 0), max(extension - scheduler_block, 0)})


def with_junction(boundaries: Sequence[int], junction: int, step: int) -> Sequence[int]:
    """The boundaries that are always kept, with the junction that the request's lookup found and, where a sharer's
    hit ends lower, the position `step` below it."""
    if not junction:
        return boundaries
    return (*boundaries, junction, junction - step) if step else (*boundaries, junction)


def keeps_state(
    block: int, block_size: int, interval: int | None, grid: int, boundaries: Sequence[int]
) -> bool:
    """Whether the state at the end of block number `block` keeps its key.

    Args:
        grid: hits land on its multiples. boundaries: positions that are kept whatever the interval.
    """
    if interval is None:
        return True
    if interval and (interval <= block_size or (block + 1) % (interval // block_size) == 0):
        return True
    for boundary in boundaries:  # noqa: SIM110 - a generator costs more than the loop
        if (boundary - boundary % grid) // block_size == block + 1:
            return True
    return False


class WindowMask:
    """Which blocks of a sliding window keep a key: the window that ends at each kept boundary.

    Attributes:
        need: whole blocks that a hit looks at. shift: 1 where a hit looks one block past the boundary and drops it.
    """

    __slots__ = ("block_size", "grid", "interval", "need", "per_segment", "shift")

    def __init__(self, window: int, block_size: int, interval: int | None, grid: int, drop: bool) -> None:
        self.block_size = block_size
        self.interval = interval
        self.grid = grid
        self.shift = 1 if drop else 0
        self.need = contiguous_blocks(window, block_size, drop)
        segment = grid if interval is None else interval
        self.per_segment = segment // block_size

    def kept(self, start: int, end: int, boundaries: Sequence[int]) -> Sequence[int]:
        """The blocks of [start, end) that keep a key, ascending."""
        if self.grid % self.block_size:
            return range(start, end)
        kept: set[int] = set()
        if self.interval != 0:
            if self.need >= self.per_segment:
                return range(start, end)
            first = self.per_segment - self.need
            kept.update(
                block
                for block in range(max(start, self.shift), end)
                if (block - self.shift) % self.per_segment >= first
            )
        if self.interval is not None:
            for boundary in boundaries:
                last = boundary // self.grid * self.grid // self.block_size + self.shift
                kept.update(range(max(start, last - self.need), min(end, last)))
        return sorted(kept)


def contiguous_blocks(window: int, block_size: int, drop: bool) -> int:
    """Whole blocks before a position that its window touches, one more where the last is dropped."""
    return -(-(window - 1) // block_size) + (1 if drop else 0)
