"""Mamba groups outside mode `align`: `none`, where nothing is cached, and `all` (releases up to 0.31), whose kernel
writes a state at every block boundary. A table then grows block by block, as attention's does.

Source: `single_type_kv_cache_manager: MambaManager`.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from kvtune.analyzers.bookkeeping.block_pool import Block
from kvtune.analyzers.bookkeeping.manager import AttentionManager, ManagerContext, TableState
from kvtune.analyzers.bookkeeping.prefix_index import PrefixIndex
from kvtune.analyzers.bookkeeping.retention import keeps_state, with_junction
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.layout import KVCacheGroup


class MambaPlainManager(AttentionManager):
    """Only the state of the last computed token is needed. `written` are the keys registered in this step."""

    recycles = True

    def __init__(
        self, context: ManagerContext, group: KVCacheGroup, place: int, block_size: int, *, drops: bool
    ) -> None:
        super().__init__(context, group, place, block_size, drops=drops)
        self.indexes = [PrefixIndex(place, lookahead=context.lookahead)]
        self.scratch_tokens = context.speculative_blocks * block_size
        self.written: set[int] = set()
        aligned = context.profile.mask_grid == "hit_alignment"
        self.mask_grid = context.grid if aligned else context.scheduler_block

    def skipped_tokens(self, num_computed_tokens: int) -> int:
        return num_computed_tokens - 1

    def waits_for(self, hit: Seq[Block | None]) -> bool:
        """Whether a hit's state is only written in this very step."""
        last = hit[-1] if hit else None
        return last is not None and last.key in self.written

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
        num_tokens += self.scratch_tokens
        return super().blocks_needed(state, num_tokens, main_tokens, hit, start, prefill_end, admission)

    def allocate(self, state: TableState, num_tokens: int, main_tokens: int) -> Seq[Block]:
        return super().allocate(state, num_tokens + self.scratch_tokens, main_tokens)

    def register(self, sequence: Sequence, state: TableState, num_tokens: int, boundaries: Seq[int]) -> None:
        before = max(state.cached, 0)
        super().register(sequence, state, num_tokens, boundaries)
        for block in state.table[before : max(state.cached, 0)]:
            if block is not None and block.key is not None:
                self.written.add(block.key)

    def kept(self, start: int, end: int, sequence: Sequence, boundaries: Seq[int]) -> Iterable[int]:
        interval = self.context.retention
        if interval is None:
            return range(start, end)
        kept = with_junction(boundaries, sequence.junction, self.junction_step)
        return [
            block
            for block in range(start, end)
            if keeps_state(block, self.block_size, interval, self.mask_grid, kept)
        ]
