"""How each kind of group finds the longest cached prefix of a sequence, up to a length.

Groups of one spec are looked up together: a prefix counts only if every one of them has it. A finder gives the
hit's length and, per group, its blocks: for attention the table up to there (None where the null block stands),
for Mamba the one state. Sources: `single_type_kv_cache_manager: find_longest_cache_hit` of each manager.

Finders count `probes`: the positions that the engine asks its store for, one per position and set of like groups.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence as Seq
from typing import Any

from kvtune.analyzers.bookkeeping.block_pool import Block
from kvtune.analyzers.bookkeeping.prefix_index import PrefixIndex
from kvtune.analyzers.bookkeeping.retention import contiguous_blocks
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.layout import KVCacheGroup

Found = tuple[int, Seq[Any]]
"""Hit length in tokens, and per group its table of blocks or, for Mamba, its one block."""


class Finder(ABC):
    """Groups of one spec.

    Attributes:
        indexes: of every member group. block_size: effective tokens per block. unit: tokens of one hash.
        grid: hits land on its multiples. drops: a member group gives up the last unit of its hits.
        probes: positions asked for so far.
    """

    finds_states = False

    def __init__(
        self,
        group: KVCacheGroup,
        indexes: Seq[PrefixIndex],
        block_size: int,
        unit: int,
        grid: int,
        drops: bool,
    ) -> None:
        self.group = group
        self.indexes = indexes
        self.block_size = block_size
        self.unit = unit
        self.grid = grid
        self.fine = grid < block_size and block_size % grid == 0
        self.drops = drops
        self.probes = 0

    @abstractmethod
    def find(self, sequence: Sequence, max_length: int, drop: bool) -> Found:
        """The longest hit of at most `max_length` tokens; `drop` gives up its last unit."""

    def _row(self, key: int) -> tuple[Block, ...] | None:
        """The blocks of `key` in every member group, or None."""
        row: list[Block] = []
        for index in self.indexes:
            block = index.first(key)
            if block is None:
                return None
            row.append(block)
        return tuple(row)

    def _highest(self, sequence: Sequence, above: int, upto: int) -> tuple[int, tuple[Block, ...]] | None:
        """The highest kept position in (above, upto] that every member group has."""
        lookahead = sequence.lookahead
        ends, bases, leader = sequence.ends, sequence.bases, self.indexes[0]
        target = upto + lookahead
        floor = above + lookahead
        segment = bisect_left(ends, target)
        while target > floor:
            low, base = ends[segment - 1] if segment else 0, bases[segment]
            while position := leader.highest(base, low if low > floor else floor, target):
                tokens = position - lookahead
                if self.fine or (tokens % self.block_size == 0 and tokens % self.grid == 0):
                    row = self._row(base + position)
                    if row is not None:
                        return tokens, row
                target = position - 1
            if target > low:
                target = low
            segment -= 1
        return None


class FullFinder(Finder):
    """The run of whole blocks from the start, then the prompt tails inside the first missing block."""

    def find(self, sequence: Sequence, max_length: int, drop: bool) -> Found:
        block_size = self.block_size
        limit = sequence.num_hashed_tokens(self.unit)
        if limit > max_length:
            limit = max_length
        count = limit // block_size
        keys = sequence.block_keys(block_size, count)
        tables = self._run(keys, count)
        full = len(tables[0])
        self.probes += full + (full < count)
        length = full * block_size
        if self.fine:
            reach = min(length + block_size - self.grid, limit // self.grid * self.grid)
            if reach > length:
                found = self._highest(sequence, length, reach)
                self.probes += (reach - (found[0] if found else length)) // self.grid + (found is not None)
                if found is not None:
                    length, row = found
                    for number, table in enumerate(tables):
                        table.append(row[number])
        if drop and length > 0:
            length -= min(self.grid, block_size)
        length -= length % self.grid
        blocks = -(-length // block_size)
        if blocks < len(tables[0]):
            for table in tables:
                del table[blocks:]
        return length, tables

    def _run(self, keys: list[int], count: int) -> list[list[Block]]:
        if len(self.indexes) == 1:
            get = self.indexes[0].blocks.get
            table: list[Block] = []
            for key in keys[:count] if count < len(keys) else keys:
                entry = get(key)
                if entry is None:
                    break
                table.append(entry if entry.__class__ is Block else next(iter(entry)))  # type: ignore[arg-type]
            return [table]
        tables: list[list[Block]] = [[] for _ in self.indexes]
        for key in keys[:count]:
            row = self._row(key)
            if row is None:
                break
            for table, block in zip(tables, row, strict=True):
                table.append(block)
        return tables


class StateFinder(Finder):
    """The highest position with a Mamba state. A state stands alone: nothing before it is needed."""

    finds_states = True

    def find(self, sequence: Sequence, max_length: int, drop: bool) -> Found:
        step = self.grid if self.fine else self.block_size
        limit = sequence.num_hashed_tokens(self.unit)
        limit = (limit if limit < max_length else max_length) // step * step
        found = self._highest(sequence, 0, limit) if limit > 0 else None
        if found is None:
            self.probes += limit // step
            return 0, ()
        self.probes += (limit - found[0]) // step + 1
        return found


class WindowFinder(Finder):
    """From the right, the first window's worth of blocks in a row; else what is cached from the start."""

    def find(self, sequence: Sequence, max_length: int, drop: bool) -> Found:
        block_size, grid = self.block_size, self.grid
        aligned = block_size == grid
        assert self.group.window is not None
        need = contiguous_blocks(self.group.window, block_size, drop)
        count = min(max_length, sequence.num_hashed_tokens(self.unit)) // block_size
        keys = sequence.block_keys(block_size, count)
        tables: list[list[Block | None]] = [[None] * count for _ in self.indexes]
        run = 0
        length = -1
        for position in range(count - 1, -1, -1):
            self.probes += 1
            row = self._row(keys[position])
            if row is None:
                run = 0
                continue
            if run == 0 and not aligned and (position + (not drop)) * block_size % grid:
                continue
            for table, block in zip(tables, row, strict=True):
                table[position] = block
            run += 1
            if run >= need:
                length = position + run
                break
        if length < 0:
            length = self._aligned(run)
        if drop and length:
            length = self._aligned(length - 1)
        for table in tables:
            del table[length:]
        return length * block_size, tables

    def _aligned(self, blocks: int) -> int:
        while blocks and self.block_size != self.grid and blocks * self.block_size % self.grid:
            blocks -= 1
        return blocks


class ChunkedLocalFinder(Finder):
    """Chunks before the one that `max_length` falls in count as computed; the rest is a run from there."""

    def find(self, sequence: Sequence, max_length: int, drop: bool) -> Found:
        block_size = self.block_size
        assert self.group.window is not None
        skipped = max_length // self.group.window * self.group.window // block_size
        count = max_length // block_size
        keys = sequence.block_keys(block_size, count)
        tables: list[list[Block | None]] = [[None] * skipped for _ in self.indexes]
        for position in range(skipped, count):
            self.probes += 1
            row = self._row(keys[position])
            if row is None:
                break
            for table, block in zip(tables, row, strict=True):
                table.append(block)
        return len(tables[0]) * block_size, tables
