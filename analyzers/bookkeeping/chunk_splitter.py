"""Where a prefill chunk of a Mamba `align` model has to end, so that reusable states come into being.

    block boundary above a start inside a block | last cacheable block | prompt tail | junction | budget

The earliest of them inside the chunk wins. Source: `sched/scheduler: _mamba_block_aligned_split`.
"""

from __future__ import annotations

from kvtune.analyzers.bookkeeping.checkpoint import CheckpointRules, can_export
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.profiles import ReleaseProfile
from kvtune.analyzers.resolver import ResolvedSizes


class ChunkSplitter:
    """Clips chunks of one engine. Its grid is the smallest block of any group, whatever the Mamba block is."""

    def __init__(self, config: EngineConfig, profile: ReleaseProfile, sizes: ResolvedSizes) -> None:
        self._aligns_to_prefill_end = profile.aligns_until == "prefill_end"
        self._splits_wide_blocks = profile.splits_wide_blocks
        self._realigns_past_last_block = profile.realigns_past_last_block
        self._block = sizes.min_block_size
        self._unit = sizes.hash_block_size
        rules = CheckpointRules(profile, drop=sizes.eagle_block_drop, lookahead=sizes.hash_lookahead_tokens)
        self._last_block, self._tail, self._exported = rules.last_block, rules.tail, rules.exported
        fine = sizes.partial_hits or not profile.tail_needs_partial_hits
        self._has_tail = fine and sizes.hash_block_size < sizes.scheduler_block_size
        self._junction_inside = sizes.junction_checkpoint and self._has_tail
        mambas = [group for group in config.expanded() if group.kind == "mamba"]
        # The first group speaks for all: the engine has one alignment for the model.
        exports = all(group.export_alignment is not None for group in mambas)
        self._export_alignment = mambas[0].export_alignment if mambas and exports else None
        on_unit = self._has_tail or profile.export_grid == "unit"
        self._export_grid = self._unit if on_unit else sizes.scheduler_block_size
        threshold = config.long_prefill_token_threshold
        self._max_chunk = min(sizes.step_budget, threshold or sizes.step_budget)

    def clip(self, sequence: Sequence, start: int, num_new_tokens: int) -> int:
        """How many of the offered tokens to schedule from `start`; 0 if the budget does not reach a boundary."""
        prompt, known = sequence.num_prompt_tokens, sequence.num_tokens
        prefill_end = prompt if prompt >= known else known - 1
        if start >= prefill_end:
            return num_new_tokens
        block = self._block
        end = start + num_new_tokens
        last_block = self._last_block.of(known, block)
        exports = (
            self._export_alignment is not None
            and end >= prefill_end
            and self._exports(start, end, prefill_end)
        )
        if exports:
            last_block = 0
        if end < (prefill_end if self._aligns_to_prefill_end else last_block):
            aligned = end - end % block
            if aligned > start or block <= self._max_chunk or not self._splits_wide_blocks:
                end = aligned
        stop = end
        if start % block and not exports:
            boundary = start - start % block + block
            if boundary < stop and (self._realigns_past_last_block or boundary <= last_block):
                stop = boundary
        if start < last_block < stop:
            stop = last_block
        if self._has_tail and not exports:
            tail = self._tail.of(prompt, self._unit)
            if last_block < tail < prompt and start < tail < stop:
                stop = tail
        junction = sequence.junction
        if start < junction < end:
            if not (self._junction_inside and junction <= prompt):
                junction = start + (junction - start) // block * block
            if start < junction < stop:
                stop = junction
        return stop - start if stop > start else 0

    def _exports(self, start: int, end: int, prefill_end: int) -> bool:
        """Whether the chunk that ends the prefill hands its state out, so that it need not be split for it."""
        position = self._exported.of(prefill_end, self._export_grid)
        return can_export(start, end, position, self._unit, self._block, self._export_alignment)
