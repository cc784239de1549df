"""Full attention: every full block is keyed, and the prompt's tail inside a block.

Source: `single_type_kv_cache_manager: FullAttentionManager`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from kvtune.analyzers.bookkeeping.manager import AttentionManager, ManagerContext, TableState
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.layout import KVCacheGroup


class FullAttentionManager(AttentionManager):
    """Keys are dense: retention does not apply."""

    def __init__(
        self, context: ManagerContext, group: KVCacheGroup, place: int, block_size: int, *, drops: bool
    ) -> None:
        super().__init__(context, group, place, block_size, drops=drops)
        # A resend reads at most all but the last token; a dropping group reads the whole prompt before it drops.
        self._unread = 1 if context.profile.full_tail_leaves_last_token and not drops else 0

    def register(self, sequence: Sequence, state: TableState, num_tokens: int, boundaries: Seq[int]) -> None:
        block_size, unit = self.block_size, self.context.unit
        if num_tokens // block_size > state.cached:
            super().register(sequence, state, num_tokens, boundaries)
        # Only hashes that look several tokens ahead can move the tail once it is keyed: they appear later.
        if block_size == unit or (state.tail_keyed and sequence.lookahead <= 1):
            return
        readable = sequence.num_prompt_tokens - self._unread
        tail = readable - readable % unit
        if sequence.lookahead:
            tail = min(tail, sequence.num_hashed_tokens(unit))
        if tail > num_tokens or tail % block_size == 0:
            return
        position = tail // block_size
        if position < len(state.table):
            block = state.table[position]
            if block is not None:
                self.indexes[0].key_partial(sequence.key(tail), block, tail)
                # Nothing but promotion to a full block takes a key from a block that is held.
                state.tail_keyed = True
