"""Mamba groups in mode `align`: a state can be reused only where a chunk ended, and one block holds one state.

    table of a request, block 528, prompt 1946, unit 16; chunks end at 1584, 1936, 1946:
      |  null  |  null  | state@1584 | running state |       keyed at 1584, and at 1936 while it stands there
    next step: the running block is written on, so its key at 1936 moves to a fresh copy of it

A run of K like groups does the same to K blocks at every moment, so one manager keeps K of them in a row: a row is
the tuple of the members' blocks, or one block for all of them while the pool is roomy (`lanes`). Rows are few (the
last state, the running one, drafts' scratch), so a table is a dict of its rows and a length, and no cost grows with
the prompt. Source: `single_type_kv_cache_manager: MambaManager`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from kvtune.analyzers.bookkeeping.block_pool import Block
from kvtune.analyzers.bookkeeping.checkpoint import can_export
from kvtune.analyzers.bookkeeping.manager import Copy, ManagerContext
from kvtune.analyzers.bookkeeping.state_keys import StateKeys
from kvtune.analyzers.bookkeeping.state_table import Row, StateTable
from kvtune.analyzers.layout import KVCacheGroup


class MambaAlignManager(StateKeys):
    """A run of like Mamba groups: the blocks that its requests need, hold, copy and give back."""

    recycles = True

    def __init__(
        self,
        context: ManagerContext,
        group: KVCacheGroup,
        place: int,
        block_size: int,
        *,
        drops: bool,
        members: int = 1,
    ) -> None:
        self.pool = context.pool
        self.lanes = context.pool.lanes(members)
        super().__init__(context, place, block_size, drops=drops, lanes=self.lanes)
        self.group = group
        self.place = place
        self.members = members
        self.weight = members // self.lanes
        self._skips_gaps = context.profile.state_release_skips_gaps
        self.speculative_blocks = context.speculative_blocks
        self.copies: list[tuple[Row, Row]] = []

    @property
    def rhythms(self) -> set[tuple[int, int]]:
        """As `AttentionManager.rhythms`."""
        return {(self.block_size, 0)}

    def new_state(self) -> StateTable:
        return StateTable()

    def plan_export(self, state: StateTable, start: int, end: int, prefill_end: int) -> None:
        """Settle which state the chunk [start, end) exports."""
        state.export = self._export(state, start, end, prefill_end)

    def _export(self, state: StateTable, start: int, end: int, prefill_end: int) -> tuple[int, int] | None:
        context = self.context
        place = -(-end // self.block_size) - 2
        if place < 0 or (end < prefill_end and context.profile.export_only_at_prefill_end):
            return None
        position = context.checkpoints.exported.of(end, self.export_grid)
        if not can_export(start, end, position, context.unit, self.block_size, self.group.export_alignment):
            return None
        if place in state.rows and not (state.allocated and place >= state.length - self.speculative_blocks):
            return None  # a state stands where the exported one would be written
        return position, place

    def blocks_needed(
        self,
        state: StateTable,
        num_tokens: int,
        main_tokens: int,
        hit: Row,
        start: int,
        prefill_end: int,
        admission: bool,
    ) -> int:
        """Free blocks that a step up to `main_tokens` takes in all members; drafts have no state of their own."""
        block_size = self.block_size
        needed = -(-main_tokens // block_size) + self.speculative_blocks - state.length
        partial = state.partial is not None
        evictable = 0
        if hit:
            needed -= -(-start // block_size)
            partial = partial or start % block_size != 0
            for block in hit:
                if not block.ref_count:
                    evictable += block.weight
        if partial:
            needed = max(needed, 0) + 1
        if needed > 0:
            export = state.export
            if admission and self.group.export_alignment is not None:
                export = self._export(state, start, main_tokens, prefill_end)
            needed = self._bounded(state, needed, partial, export is not None)
        return needed * self.members + evictable  # negative where drafts had blocks allocated ahead

    def _bounded(self, state: StateTable, needed: int, partial: bool, export: bool) -> int:
        """What `needed` really takes: states passed over inside a chunk are never allocated."""
        rule = self.context.profile.state_estimate
        bound = 1 + partial + export
        if not state.allocated or (export and rule == "export_adds_drafts"):
            bound += self.speculative_blocks
        if rule == "flat":
            return needed if export and state.allocated else bound
        return min(needed, bound)

    def adopt(self, state: StateTable, hit: Row, num_hit_tokens: int) -> None:
        """Take the state of a hit: only the last one counts."""
        if not hit:
            return
        position = -(-num_hit_tokens // self.block_size) - 1
        self.pool.touch(hit)
        state.rows[position] = hit
        state.length = state.cached = position + 1
        if num_hit_tokens % self.block_size:
            state.cached = position
            state.partial = (position, hit)

    def release_skipped(self, state: StateTable, processed_tokens: int) -> None:
        """Release states that the request has moved past."""
        rows, last = state.rows, state.last_position
        passed = (processed_tokens - 1) // self.block_size
        if passed > state.length:
            passed = state.length
        freed: list[Row] = []
        for position in sorted(rows, reverse=True) if len(rows) > 1 else tuple(rows):
            if position < passed:
                if not self._skips_gaps and position != passed - 1 - len(freed):
                    break
                freed.append(rows.pop(position))
        # The state of the step before the last was copied on already, wherever it stands.
        late = None
        if 0 <= last < -(-processed_tokens // self.block_size) - 1:
            late = rows.pop(last, None)
        if not freed and late is None:
            return
        free = self.pool.free
        for lane in range(self.lanes):
            if freed:
                free([row[lane] for row in freed])
            if late is not None:
                free((late[lane],))

    def allocate(self, state: StateTable, num_tokens: int, main_tokens: int) -> Seq[Block]:
        """Give the request a block for its running state; returns the new blocks, member by member."""
        spec = self.speculative_blocks
        required = -(-main_tokens // self.block_size) + spec
        export = state.export is not None
        partial = state.partial
        if required <= state.length and partial is None and not export:
            state.allocated = True
            return ()
        before = state.length
        if state.allocated:
            state.last_position = before - 1 - spec
        elif before > 0:
            state.last_position = before - 1
        skipped = required - spec - 1
        if before < skipped:
            state.length = max(before, skipped - export)
        if spec and state.allocated and (not export or self.context.profile.drafts_travel_past_export):
            self._carry_drafts(state, before, skipped - export)
        length = state.length
        missing = required - length if required > length else 0
        count = missing if partial is None else missing + 1
        flat = self.pool.allocate(count * self.lanes, self.weight)
        if partial is not None:
            state.partial = None
            self._copy(state, partial, tuple(flat[::count]))
        for nth in range(count - missing, count):
            state.rows[length] = tuple(flat[nth::count])
            length += 1
        state.length = length
        state.allocated = True
        return flat

    def _carry_drafts(self, state: StateTable, before: int, end: int) -> None:
        """Scratch blocks of drafts stay exclusive to the request and travel with it; one at the place of an exported
        state, from `end` on, stays there to receive it."""
        rows = state.rows
        for position in range(before - self.speculative_blocks, min(before, end)):
            rows[state.length] = rows.pop(position)
            state.length += 1

    def _copy(self, state: StateTable, partial: tuple[int, Row], target: Row) -> None:
        position, source = partial
        self.copies.append((source, target))
        if not state.allocated:
            # A hit: the request goes on in a private copy.
            state.rows[position] = target
            for block in target:
                block.ref_count += 1
            return
        # The request's own tail: workers cannot swap its block any more, so the keys move to the copy.
        for lane, index in self._by_lane:
            index.move(source[lane], target[lane])
            source[lane].ref_count += 1
        if target[0].key is not None:
            self.written.add(target[0].key)

    def release(self, state: StateTable) -> None:
        """Give everything back: member by member, each from its last state on."""
        rows = state.rows
        held = sorted(rows, reverse=True) if len(rows) > 1 else rows
        for lane in range(self.lanes):
            self.pool.free([rows[position][lane] for position in held])

    def take_copies(self) -> list[Copy]:
        """The copies queued since the last call, member by member as the engine queues them."""
        queued = self.copies
        if not queued:
            return []
        self.copies = []
        copies: list[Copy] = []
        for lane in range(self.lanes):
            for source, target in queued:
                copies.append((source[lane], target[lane]))
        return copies

    def tables(self, state: StateTable) -> list[list[int]]:
        """Block ids of each member's table; 0 is the null block."""
        tables = []
        for member in range(self.members):
            table = [0] * state.length
            for position, row in state.rows.items():
                table[position] = row[member].block_id
            tables.append(table)
        return tables
