"""Which Mamba states get a key, when, and for how long they may not be hit: mode `align`.

A state can be found at a position only if a chunk ended there (or a backend exported it from inside one), and only
if it is the prompt tail, the junction, a boundary that retention keeps, or an export that one of these keeps.
Source: `single_type_kv_cache_manager: MambaManager.cache_blocks, _cache_partial_tail_block`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from kvtune.analyzers.bookkeeping.manager import ManagerContext
from kvtune.analyzers.bookkeeping.prefix_index import PrefixIndex
from kvtune.analyzers.bookkeeping.retention import keeps_state, with_junction
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.bookkeeping.state_table import Row, StateTable


class StateKeys:
    """Keys of a run of like groups.

    Attributes:
        indexes: one per lane. written: keys registered in this step, of states that do not exist yet.
    """

    def __init__(
        self, context: ManagerContext, place: int, block_size: int, *, drops: bool, lanes: int
    ) -> None:
        self.context = context
        self.block_size = block_size
        self.drops = drops
        # Lookups from the right ask the first lane by position, the others by key.
        self.indexes = [
            PrefixIndex(place + lane, except_multiples_of=None if lane else 0, lookahead=context.lookahead)
            for lane in range(lanes)
        ]
        self._by_lane = list(enumerate(self.indexes))
        self.written: set[int] = set()
        self.unit = context.unit
        self.tail_rule = context.checkpoints.keyed_tail(drops)
        profile = context.profile
        self.junction_step = block_size if drops and profile.drop_keeps_block_below_junction else 0
        self.export_grid = context.grid if profile.export_grid == "hit_alignment" else context.unit
        self.mask_grid = context.grid if profile.mask_grid == "hit_alignment" else context.scheduler_block

    def waits_for(self, hit: Row) -> bool:
        """Whether a hit's state is only written in this very step, so that the request has to wait for the next."""
        written = self.written
        return bool(written) and any(block.key in written for block in hit)

    def register(self, sequence: Sequence, state: StateTable, num_tokens: int, boundaries: Seq[int]) -> None:
        """Key the states that stand on block boundaries, and the one where the prompt can be resumed."""
        start, full = state.cached, num_tokens // self.block_size
        crossed: list[int] = []
        if start < full and sequence.lookahead:
            full = min(num_tokens, sequence.num_hashed_tokens(self.unit)) // self.block_size
        if start < full:
            crossed = [position for position in state.rows if start <= position < full]
            if crossed:
                if len(crossed) > 1:
                    crossed.sort()
                self._key_blocks(
                    sequence, state, crossed, with_junction(boundaries, sequence.junction, self.junction_step)
                )
            state.cached = full
        if state.export is not None:
            key = self._key_export(sequence, state, state.export, num_tokens)
        else:
            key = self._key_tail(sequence, state, num_tokens)
        if key is not None:
            self.written.add(key)
        for position in crossed:
            primary = state.rows[position][0].key
            if primary is not None:
                self.written.add(primary)

    def _key_blocks(self, sequence: Sequence, state: StateTable, crossed: list[int], kept: Seq[int]) -> None:
        block_size, interval, grid = self.block_size, self.context.retention, self.mask_grid
        for position in crossed:
            if keeps_state(position, block_size, interval, grid, kept):
                tokens = (position + 1) * block_size
                key = sequence.key(tokens)
                row = state.rows[position]
                for lane, index in self._by_lane:
                    block = row[lane]
                    if block.key is not None:
                        index.forget(block)
                    index.insert(key, block, tokens)

    def _key_export(
        self, sequence: Sequence, state: StateTable, export: tuple[int, int], num_tokens: int
    ) -> int | None:
        """The state exported from this chunk overwrites its block: old keys go, and it is keyed if kept."""
        position, place = export
        row = state.rows.get(place)
        if not self._export_is_kept(sequence, position, num_tokens):
            for index, block in zip(self.indexes, row or (), strict=False):
                index.forget(block)
            return None
        if row is None or (row[0].key is not None and row[0].key_tokens == position):
            return None
        key = sequence.key(position)
        for index, block in zip(self.indexes, row, strict=True):
            index.forget(block)
            index.insert(key, block, position)
        return key

    def _export_is_kept(self, sequence: Sequence, position: int, num_tokens: int) -> bool:
        context = self.context
        rule = context.profile.export_kept
        if position == sequence.junction:
            return True
        if rule != "retention_zero_any" and position == context.checkpoints.exported.of(
            sequence.num_prompt_tokens, self.export_grid
        ):
            return True
        if rule != "mask":
            return context.retention != 0 or num_tokens >= sequence.num_prompt_tokens
        block = position // self.block_size - 1
        return position % self.block_size == 0 and keeps_state(
            block, self.block_size, context.retention, self.mask_grid, ()
        )

    def _key_tail(self, sequence: Sequence, state: StateTable, num_tokens: int) -> int | None:
        """Key the running state if the chunk ended where the prompt, or a sharer at the junction, can resume."""
        if num_tokens % self.unit or num_tokens <= 0:
            return None
        if state.tail < 0:
            state.tail = self.tail_rule.of(sequence.num_prompt_tokens, self.unit)
        if num_tokens != state.tail and not (
            self.context.junction_checkpoint
            and num_tokens == sequence.junction
            and sequence.num_computed_tokens < num_tokens <= sequence.num_prompt_tokens
        ):
            return None
        profile = self.context.profile
        if not profile.mamba_tail_on_block_boundary and num_tokens % self.block_size == 0:
            return None
        position = -(-num_tokens // self.block_size) - 1
        row = state.rows.get(position)
        if row is None:
            return None
        if (
            row[0].key is not None
            and row[0].key_tokens == num_tokens
            and not profile.rekeyed_tail_defers_twins
        ):
            return None
        key = sequence.key(num_tokens)
        for lane, index in self._by_lane:
            index.key_partial(key, row[lane], num_tokens)
        if num_tokens % self.block_size:
            state.partial = (position, row)
            state.cached = position
        return key
