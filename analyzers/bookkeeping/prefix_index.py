"""The prefix index of one group: from a key to the blocks that hold that prefix's last block or state.

A key is the name of a prefix (`prefix_tree.PrefixPath.key`), so it means the same tokens as the engine's chained
hash. The engine does not merge equal blocks: a key can have several, and a lookup finds the one keyed first. A
block can have several keys: a primary one and aliases.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from typing import Literal

from kvtune.analyzers.bookkeeping.block_pool import Block
from kvtune.analyzers.prefix_tree import KEY_SHIFT

_POSITION = (1 << KEY_SHIFT) - 1

KeyEvent = Literal["keyed", "moved", "overwritten", "evicted"]

KeyListener = Callable[[KeyEvent, int, Block, int], None]
"""Called with what happened, the group, the block that has or had the key, and the key."""


class PrefixIndex:
    """Keys of one group.

    Attributes:
        group: the expanded group's place. blocks: key -> its only block, or its blocks in keying order.
        positions: owner (as a key's high bits) -> ascending positions of its keys, for lookups from the right.
            Only those are kept whose prefix is no multiple of `except_multiples_of`; None: none is.
        listener: told of every change, or None.
    """

    __slots__ = ("_except", "_lookahead", "blocks", "group", "listener", "positions")

    def __init__(self, group: int, *, except_multiples_of: int | None = 0, lookahead: int = 0) -> None:
        self.group = group
        self.blocks: dict[int, Block | dict[Block, None]] = {}
        self.positions: dict[int, list[int]] = {}
        self.listener: KeyListener | None = None
        self._except = except_multiples_of
        self._lookahead = lookahead

    def first(self, key: int) -> Block | None:
        """The block that a lookup of `key` finds."""
        entry = self.blocks.get(key)
        return next(iter(entry)) if isinstance(entry, dict) else entry

    def holds(self, key: int, block: Block) -> bool:
        """Whether `block` is among the blocks of `key`."""
        entry = self.blocks.get(key)
        return block in entry if isinstance(entry, dict) else entry is block

    def insert(self, key: int, block: Block, tokens: int, event: KeyEvent = "keyed") -> None:
        """Make `block` findable by `key`, the name of a prefix of `tokens` tokens."""
        entry = self.blocks.get(key)
        if entry is None:
            self.blocks[key] = block
            self._place(key, tokens)
        elif isinstance(entry, dict):
            if block in entry:
                return
            entry[block] = None
        elif entry is block:
            return
        else:
            self.blocks[key] = {entry: None, block: None}
        if block.key is None:
            block.key = key
            block.key_tokens = tokens
            block.home = self
        elif block.aliases is None:
            block.aliases = [key]
        else:
            block.aliases.append(key)
        if self.listener is not None:
            self.listener(event, self.group, block, key)

    def key_partial(self, key: int, block: Block, tokens: int) -> None:
        """Key a block at a prefix that may end inside it: a shorter prefix's keys give way, a longer one's stay."""
        if block.key is not None and block.key_tokens < tokens and not self.holds(key, block):
            self.forget(block)
        self.insert(key, block, tokens)

    def forget(self, block: Block, event: KeyEvent = "overwritten") -> None:
        """Drop every key of `block`."""
        key = block.key
        if key is None:
            return
        self._remove(key, block, event)
        if block.aliases is not None:
            for alias in block.aliases:
                self._remove(alias, block, event)
            block.aliases = None
        block.key = None

    def move(self, source: Block, target: Block) -> None:
        """Give all keys of `source` to `target`, which has none."""
        key, tokens = source.key, source.key_tokens
        if key is None:
            return
        if source.aliases is None and self.listener is None and self.blocks[key] is source:
            self.blocks[key] = target
            source.key = None
            target.key, target.key_tokens, target.home = key, tokens, self
            return
        keys = [key, *(source.aliases or ())]
        self.forget(source, "moved")
        for key in keys:
            self.insert(key, target, tokens, "moved")

    def _remove(self, key: int, block: Block, event: KeyEvent) -> None:
        entry = self.blocks[key]
        if isinstance(entry, dict):
            del entry[block]
        if entry is block or not entry:
            del self.blocks[key]
            self._unplace(key)
        if self.listener is not None and event != "moved":
            self.listener(event, self.group, block, key)

    def _place(self, key: int, tokens: int) -> None:
        """Note the position of a new key, if this index keeps it."""
        skip = self._except
        if skip == 0 or (skip is not None and tokens % skip):
            position = key & _POSITION
            kept = self.positions.get(key - position)
            if kept is None:
                self.positions[key - position] = [position]
            else:
                insort(kept, position)

    def _unplace(self, key: int) -> None:
        position = key & _POSITION
        skip = self._except
        if skip == 0 or (skip is not None and (position - self._lookahead) % skip):
            kept = self.positions[key - position]
            del kept[bisect_left(kept, position)]
            if not kept:
                del self.positions[key - position]

    def highest(self, owner: int, above: int, upto: int) -> int:
        """The highest kept position of `owner` (a key's high bits) in (above, upto], or 0."""
        kept = self.positions.get(owner)
        if kept is None:
            return 0
        place = bisect_right(kept, upto)
        return kept[place - 1] if place and kept[place - 1] > above else 0


class KeySet(PrefixIndex):
    """Keys without blocks, for lookups in what was: answers like the index that it was made `like`."""

    __slots__ = ()

    def __init__(self, like: PrefixIndex) -> None:
        super().__init__(like.group, except_multiples_of=like._except, lookahead=like._lookahead)

    def add(self, key: int) -> None:
        """Add a key."""
        if key not in self.blocks:
            self.blocks[key] = _NO_BLOCK
            self._place(key, (key & _POSITION) - self._lookahead)

    def clear(self) -> None:
        """Take all keys out."""
        self.blocks.clear()
        self.positions.clear()

    def discard(self, key: int) -> None:
        """Take a key out, if it is there."""
        if self.blocks.pop(key, None) is not None:
            self._unplace(key)


_NO_BLOCK = Block(-1)
