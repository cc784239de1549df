"""What every group manager does for a request: count the blocks it needs, adopt a hit, allocate, key, release.

`AttentionManager` is the common case, a table that grows by whole blocks; kinds override what they do differently.
Sources: `single_type_kv_cache_manager: SingleTypeKVCacheManager`.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from kvtune.analyzers.bookkeeping.block_pool import Block, BlockPool
from kvtune.analyzers.bookkeeping.checkpoint import CheckpointRules
from kvtune.analyzers.bookkeeping.prefix_index import PrefixIndex
from kvtune.analyzers.bookkeeping.roomy_pool import RoomyPool
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.layout import KVCacheGroup
from kvtune.analyzers.profiles import ReleaseProfile

Copy = tuple[Block, Block]
"""Source and target of a block copy that the workers make before the step."""


@dataclass(frozen=True)
class ManagerContext:
    """What all managers share.

    Attributes:
        unit: tokens of one hash. scheduler_block: in tokens. grid: hits land on its multiples.
        retention: the retention interval. drop: the engine drops a block from hits.
        max_in_flight_tokens, max_model_len: bound what a sliding window holds at once.
        speculative_blocks: extra state blocks of a Mamba request. junction_checkpoint: junctions inside a block
            get a state.
    """

    pool: BlockPool | RoomyPool
    profile: ReleaseProfile
    checkpoints: CheckpointRules
    caching: bool
    unit: int
    scheduler_block: int
    grid: int
    retention: int | None
    drop: bool
    lookahead: int
    max_in_flight_tokens: int
    max_model_len: int
    speculative_blocks: int
    prefill_lookahead: int
    junction_checkpoint: bool


class TableState:
    """A request's blocks in one group.

    Attributes:
        table: block of each block position, None where the null block stands.
        cached: leading blocks that need no key any more; -1 before the first is known.
        partial: (position, block) of a hit that ends inside a block and is copied before it is written.
        tail_keyed: the prompt tail inside a block has its key.
    """

    __slots__ = ("cached", "partial", "table", "tail_keyed")

    def __init__(self) -> None:
        self.table: list[Block | None] = []
        self.cached = -1
        self.partial: tuple[int, Block] | None = None
        self.tail_keyed = False


class AttentionManager:
    """One group whose requests hold a table of blocks.

    Attributes:
        place: number of the first expanded group. members: like groups in a row that it manages (1 here).
        block_size: effective tokens per block. drops: hits in this group give up their last unit.
        recycles: blocks are released before the request ends.
    """

    recycles = False

    def __init__(
        self, context: ManagerContext, group: KVCacheGroup, place: int, block_size: int, *, drops: bool
    ) -> None:
        self.context = context
        self.pool = context.pool
        self.group = group
        self.place = place
        self.members = 1
        self.block_size = block_size
        self.drops = drops
        # Only prompt tails inside a block are looked up by position.
        self.indexes = [PrefixIndex(place, except_multiples_of=block_size, lookahead=context.lookahead)]
        self.copies: list[Copy] = []
        self.admission_cap: int | None = None
        self.junction_step = block_size if drops and context.profile.drop_keeps_block_below_junction else 0

    @property
    def rhythms(self) -> set[tuple[int, int]]:
        """(period, offset): a decode step can change something only near `offset` + a multiple of `period` tokens."""
        return {(self.block_size, 0)}

    # --- the life of a request in this group -------------------------------------------------------------------
    def new_state(self) -> TableState:
        return TableState()

    def skipped_tokens(self, num_computed_tokens: int) -> int:
        """Leading tokens whose blocks are no longer read."""
        return 0

    def blocks_needed(
        self,
        state: TableState,
        num_tokens: int,
        main_tokens: int,
        hit: Seq[Block | None],
        start: int,
        prefill_end: int,
        admission: bool,
    ) -> int:
        """Free blocks that a step up to `num_tokens` takes, those of the hit that are free included.

        Args:
            main_tokens: `num_tokens` without the slots reserved for drafts. start: where the step starts.
            admission: ask for the whole prompt, not for one step.
        """
        required = -(-num_tokens // self.block_size)
        if admission and self.admission_cap is not None and required > self.admission_cap:
            required = self.admission_cap
        held = len(state.table)
        if state.cached >= 0:
            return max(required - held, 0)
        skipped = self.skipped_tokens(start) // self.block_size
        needed = max(required - max(skipped, len(hit) + held), 0)
        for block in hit[max(0, skipped - held) :]:
            if block is not None and not block.ref_count:
                needed += 1
        if hit and start % self.block_size:
            needed += 1
        return needed

    def adopt(self, state: TableState, hit: Seq[Block | None], num_hit_tokens: int) -> None:
        """Take the blocks of a hit, before anything is allocated in any group."""
        skipped = self.skipped_tokens(num_hit_tokens) // self.block_size
        if skipped > 0:
            hit = hit[skipped:]
            state.table.extend([None] * skipped)
        self.pool.touch(hit)
        state.table.extend(hit)
        state.cached = len(state.table)
        if hit and num_hit_tokens % self.block_size:
            last = hit[-1]
            assert last is not None
            state.cached = num_hit_tokens // self.block_size
            state.partial = (state.cached, last)

    def release_skipped(self, state: TableState, processed_tokens: int) -> None:
        """Release what attention no longer reads once `processed_tokens` are computed."""
        skipped = self.skipped_tokens(processed_tokens)
        if skipped <= 0:
            return
        table = state.table
        freed: list[Block | None] = []
        for position in range(min(skipped // self.block_size, len(table)) - 1, -1, -1):
            block = table[position]
            if block is None:
                break
            freed.append(block)
            table[position] = None
        if freed:
            self.pool.free(freed)

    def allocate(self, state: TableState, num_tokens: int, main_tokens: int) -> Seq[Block]:
        """Give the request slots up to `num_tokens`; returns its new blocks."""
        new: list[Block] = []
        table = state.table
        if state.partial is not None:
            position, source = state.partial
            state.partial = None
            new = self.pool.allocate(1)
            target = new[0]
            table[position] = target
            self.copies.append((source, target))
            target.ref_count += 1
        missing = -(-num_tokens // self.block_size) - len(table)
        if missing > 0:
            blocks = self.pool.allocate(missing)
            table.extend(blocks)
            new = new + blocks if new else blocks
        return new

    def register(self, sequence: Sequence, state: TableState, num_tokens: int, boundaries: Seq[int]) -> None:
        """Key the blocks that `num_tokens` tokens fill."""
        if sequence.lookahead:
            num_tokens = min(num_tokens, sequence.num_hashed_tokens(self.context.unit))
        full = num_tokens // self.block_size
        start = max(state.cached, 0)
        if start < full:
            keys = sequence.block_keys(self.block_size, full)
            table = state.table
            index = self.indexes[0]
            for position in self.kept(start, full, sequence, boundaries):
                block = table[position]
                if block is not None:
                    if block.key is not None:
                        index.forget(block)
                        state.tail_keyed = False
                    index.insert(keys[position], block, (position + 1) * self.block_size)
            state.cached = full

    def kept(self, start: int, end: int, sequence: Sequence, boundaries: Seq[int]) -> Iterable[int]:
        """Which of the full blocks [start, end) get a key."""
        return range(start, end)

    def release(self, state: TableState) -> None:
        """Give everything back, the last block first."""
        self.pool.free(reversed(state.table))

    def take_copies(self) -> list[Copy]:
        """The copies queued since the last call."""
        copies = self.copies
        if copies:
            self.copies = []
        return copies

    def tables(self, state: TableState) -> list[list[int]]:
        """Block ids of each member's table; 0 is the null block."""
        return [[0 if block is None else block.block_id for block in state.table]]
