"""Sliding windows and chunks of local attention: blocks that fall out of reach are released on the way.

Sources: `single_type_kv_cache_manager: SlidingWindowManager, ChunkedLocalAttentionManager`; caps:
`vllm/v1/kv_cache_interface.py: max_admission_blocks_per_request`.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from kvtune.analyzers.bookkeeping.manager import AttentionManager, ManagerContext
from kvtune.analyzers.bookkeeping.retention import WindowMask, with_junction
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.layout import KVCacheGroup


class SlidingWindowManager(AttentionManager):
    """Keys only what a hit at a kept boundary would look at."""

    recycles = True

    def __init__(
        self, context: ManagerContext, group: KVCacheGroup, place: int, block_size: int, *, drops: bool
    ) -> None:
        super().__init__(context, group, place, block_size, drops=drops)
        assert group.window is not None
        # A drafter of several modules re-reads the last tokens, so the window's trailing edge lags behind.
        self.retained = group.window - 1 + max(0, context.prefill_lookahead - 1)
        self.admission_cap = (
            -(-min(self.retained + context.max_in_flight_tokens, context.max_model_len) // block_size) + 1
        )
        grid = context.grid if context.profile.mask_grid == "hit_alignment" else context.scheduler_block
        self._mask = WindowMask(group.window, block_size, context.retention, grid, drops)

    @property
    def rhythms(self) -> set[tuple[int, int]]:
        return {(self.block_size, 0), (self.block_size, self.retained % self.block_size)}

    def skipped_tokens(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - self.retained)

    def kept(self, start: int, end: int, sequence: Sequence, boundaries: Seq[int]) -> Iterable[int]:
        return self._mask.kept(start, end, with_junction(boundaries, sequence.junction, self.junction_step))


class ChunkedLocalManager(AttentionManager):
    """Attention within chunks of `window` tokens: the chunks before the current one are never read again."""

    recycles = True

    def __init__(
        self, context: ManagerContext, group: KVCacheGroup, place: int, block_size: int, *, drops: bool
    ) -> None:
        super().__init__(context, group, place, block_size, drops=drops)
        assert group.window is not None
        self.chunk = group.window
        in_flight = min(self.chunk + context.max_in_flight_tokens, context.max_model_len)
        self.admission_cap = -(-in_flight // block_size)

    @property
    def rhythms(self) -> set[tuple[int, int]]:
        return {(self.block_size, 0), (self.chunk, 0)}

    def skipped_tokens(self, num_computed_tokens: int) -> int:
        return num_computed_tokens // self.chunk * self.chunk
