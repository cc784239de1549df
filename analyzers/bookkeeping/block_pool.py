"""The pool that all groups share: block ids, reference counts, and the order in which free blocks are used up.

The engine keeps one linked list of free blocks. It always has three parts, kept here as three containers:

    head                                                                                          tail
    | unkeyed, freed: last freed is first | never used: ids ascending | keyed: least recently freed first |

So no list of `num_blocks` entries is built, and an unlimited pool works alike. A keyed block that is handed out
loses its keys: that is eviction. Block 0 is the null block; it stands in tables as None and is never here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvtune.analyzers.bookkeeping.prefix_index import PrefixIndex

UNLIMITED = 1 << 62


class Block:
    """One physical block.

    Attributes:
        key: the prefix that it is found by (its primary key), or None. key_tokens: that prefix's length.
        aliases: further keys, or None. home: the index that holds the keys. weight: ids that it stands for.
        ref_count: who holds it; a new block is handed out, so it begins with one.
    """

    __slots__ = ("aliases", "block_id", "home", "key", "key_tokens", "ref_count", "weight")

    def __init__(self, block_id: int, weight: int = 1) -> None:
        self.block_id = block_id
        self.weight = weight
        self.ref_count = 1
        self.key: int | None = None
        self.key_tokens = 0
        self.aliases: list[int] | None = None
        self.home: PrefixIndex | None = None

    def __repr__(self) -> str:
        return f"Block({self.block_id}, refs={self.ref_count}, key_tokens={self.key_tokens if self.key else None})"


class BlockPool:
    """Hands out and takes back blocks in the engine's order.

    Attributes:
        num_blocks: as the engine's `num_gpu_blocks`, the null block included; None is unlimited.
        num_free: blocks that can be handed out.
        new_blocks, evicted_blocks: handed out so far, and how many of those lost keys.
    """

    __slots__ = (
        "_fresh",
        "_limit",
        "_lru",
        "_unkeyed",
        "evicted_blocks",
        "new_blocks",
        "num_blocks",
        "num_free",
    )

    def __init__(self, num_blocks: int | None) -> None:
        self.num_blocks = num_blocks
        self._limit = UNLIMITED if num_blocks is None else num_blocks
        self._fresh = 1
        self._unkeyed: list[Block] = []
        self._lru: OrderedDict[Block, None] = OrderedDict()
        self.num_free = self._limit - 1
        self.new_blocks = 0
        self.evicted_blocks = 0

    @staticmethod
    def lanes(members: int) -> int:
        """Blocks that are told apart in a run of `members` like groups."""
        return members

    def allocate(self, count: int, weight: int = 1) -> list[Block]:
        """The next `count` free blocks, each with one reference. The caller has checked `num_free`."""
        if count > self.num_free:
            raise RuntimeError(f"{count} blocks asked of a pool with {self.num_free} free ones")
        self.num_free -= count
        self.new_blocks += count
        unkeyed = self._unkeyed
        blocks: list[Block] = []
        for _ in range(count):
            if unkeyed:
                block = unkeyed.pop()
            elif self._fresh < self._limit:
                block = Block(self._fresh)
                self._fresh += 1
            else:
                block, _ = self._lru.popitem(last=False)
                assert block.home is not None
                block.home.forget(block, "evicted")
                self.evicted_blocks += 1
            block.ref_count = 1
            blocks.append(block)
        return blocks

    def touch(self, blocks: Sequence[Block | None]) -> None:
        """Take one more reference on each block of a hit."""
        for block in blocks:
            if block is not None:
                if not block.ref_count:
                    del self._lru[block]
                    self.num_free -= 1
                block.ref_count += 1

    def free(self, blocks: Iterable[Block | None]) -> None:
        """Drop one reference on each. Of the blocks that nobody holds any more, those without a key are used
        next, in the order given; those with a key are used last."""
        unkeyed: list[Block] = []
        for block in blocks:
            if block is None:
                continue
            block.ref_count -= 1
            if not block.ref_count:
                self.num_free += 1
                if block.key is None:
                    unkeyed.append(block)
                else:
                    self._lru[block] = None
        if unkeyed:
            unkeyed.reverse()
            self._unkeyed.extend(unkeyed)

    def free_blocks(self) -> list[Block]:
        """Every block that was used and is free, in the order of use but for the never-used ones between."""
        return [*reversed(self._unkeyed), *self._lru]

    @property
    def num_used_ids(self) -> int:
        """Blocks that were ever handed out."""
        return self._fresh - 1
