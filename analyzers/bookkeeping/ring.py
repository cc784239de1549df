"""A circular buffer: one block for a request's whole life, overwritten in place, never looked up or keyed.

Source: `single_type_kv_cache_manager: CircularBufferManager`, since 0.29.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from kvtune.analyzers.bookkeeping.block_pool import Block
from kvtune.analyzers.bookkeeping.manager import AttentionManager, TableState
from kvtune.analyzers.bookkeeping.sequence import Sequence


class RingManager(AttentionManager):
    """Its block does not grow with the request, and no hit reaches it."""

    @property
    def rhythms(self) -> set[tuple[int, int]]:
        """Decode steps change nothing here."""
        return set()

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
        return 0 if state.table else 1

    def adopt(self, state: TableState, hit: Seq[Block | None], num_hit_tokens: int) -> None:
        """A hit brings nothing: the ring holds only what is still being compressed."""

    def allocate(self, state: TableState, num_tokens: int, main_tokens: int) -> Seq[Block]:
        if state.table:
            return []
        blocks = self.pool.allocate(1)
        state.table.extend(blocks)
        return blocks

    def register(self, sequence: Sequence, state: TableState, num_tokens: int, boundaries: Seq[int]) -> None:
        """Nothing is keyed."""
