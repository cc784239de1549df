"""A pool that has not run out yet: while no keyed block is ever handed out anew, which block comes next decides
nothing.

Without evictions every member of a run of like groups holds, keys and releases the same at every moment. So one
`Block` stands for a whole row, weighing as many ids as it has members, and free blocks are counted, not queued.
Counts of blocks are those of `BlockPool` exactly, as that one too takes keyed blocks last; identities are not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvtune.analyzers.bookkeeping.block_pool import UNLIMITED, Block


class PoolTooSmallError(Exception):
    """The next block would be an eviction: who it is must be known, and the run be repeated with `BlockPool`."""


class RoomyPool:
    """Counts blocks. Attributes as `BlockPool`; `evicted_blocks` stays 0."""

    __slots__ = ("_fresh", "_limit", "_unkeyed", "evicted_blocks", "new_blocks", "num_blocks", "num_free")

    def __init__(self, num_blocks: int | None) -> None:
        self.num_blocks = num_blocks
        self._limit = UNLIMITED if num_blocks is None else num_blocks
        self._fresh = 1
        self._unkeyed = 0
        self.num_free = self._limit - 1
        self.new_blocks = 0
        self.evicted_blocks = 0

    @staticmethod
    def lanes(members: int) -> int:  # noqa: ARG004 - `BlockPool`'s interface
        """Blocks that are told apart in a run of `members` like groups."""
        return 1

    @property
    def num_used_ids(self) -> int:
        """Blocks that were ever handed out."""
        return self._fresh - 1

    def allocate(self, count: int, weight: int = 1) -> list[Block]:
        """`count` free blocks of `weight` ids each.

        Raises:
            PoolTooSmallError: a keyed block would have to go.
        """
        ids = count * weight
        self.num_free -= ids
        self.new_blocks += ids
        self._unkeyed -= ids
        if self._unkeyed < 0:
            self._fresh -= self._unkeyed
            self._unkeyed = 0
            if self._fresh > self._limit:
                raise PoolTooSmallError
        return [Block(0, weight)] if count == 1 else [Block(0, weight) for _ in range(count)]

    def touch(self, blocks: Sequence[Block | None]) -> None:
        """Take one more reference on each block of a hit."""
        for block in blocks:
            if block is not None:
                if not block.ref_count:
                    self.num_free -= block.weight
                block.ref_count += 1

    def free(self, blocks: Iterable[Block | None]) -> None:
        """Drop one reference on each."""
        for block in blocks:
            if block is not None:
                count = block.ref_count = block.ref_count - 1
                if not count:
                    weight = block.weight
                    self.num_free += weight
                    if block.key is None:
                        self._unkeyed += weight
