"""`Executor`: a step plan of the bookkeeping carried out on tensors. It decides nothing.

    StepPlan + block tables --> copies, then one forward pass --> the most likely next token of each sampled sequence

A chunk that exports a state from inside itself is run in two passes, so that the state exists at its end. Knows
the bookkeeping's plans and the engine's tensors; no clock and no arrival.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kvtune.analyzers.bookkeeping.scheduler import Scheduler
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.bookkeeping.state_table import StateTable
from kvtune.analyzers.bookkeeping.step_plan import Chunk, StepPlan
from kvtune.gpu_probe.engine.grid import ExactGrid
from kvtune.gpu_probe.engine.model import Decoder
from kvtune.gpu_probe.engine.pools import BlockCopy, CachePools
from kvtune.gpu_probe.engine.step import Int64, Segment, build_step

TokenSource = Callable[[Sequence, int, int], Int64]
"""Token ids of a sequence at positions [start, stop)."""


@dataclass(frozen=True)
class Executed:
    """What a step did.

    Attributes:
        logits: of the sampled sequences, in the plan's order, on the device; None where none was sampled.
        copied_tokens: tokens whose keys and values were copied on write, per attention group.
        copied_bytes: bytes written by copies, states included.
    """

    logits: torch.Tensor | None
    copied_tokens: int
    copied_bytes: int
    exact: bool = False

    def digests(self) -> list[bytes]:
        """SHA-256 of each sampled row's bytes in an exact run; nothing in a fast one, whose last bits say nothing."""
        if self.logits is None or not self.exact:
            return []
        rows = self.logits.cpu().contiguous().view(torch.uint8).numpy()
        return [hashlib.sha256(row.tobytes()).digest() for row in rows]


class Executor:
    """A model and its pools; `run` carries out one plan of `scheduler`."""

    def __init__(
        self, model: Decoder, pools: CachePools, tokens: TokenSource, grid: ExactGrid | None = None
    ) -> None:
        self.model = model
        self.pools = pools
        self.layers = pools.layers
        self.device = pools.device
        self._tokens = tokens
        self._grid = grid

    def run(self, plan: StepPlan, scheduler: Scheduler) -> Executed:
        """Performs the plan's copies and computes its chunks."""
        tables = [tuple(map(np.array, scheduler.tables(chunk.sequence))) for chunk in plan.chunks]
        copies = self._copies(plan, tables)
        copied_tokens = sum(copy.tokens for copy in copies if not self.layers[copy.group].recurrent)
        early, segments = [], []
        for chunk, table in zip(plan.chunks, tables, strict=True):
            first, rest = self._segments(chunk, table, scheduler)
            segments.append(rest)
            if first is not None:
                early.append(first)
        copied_bytes = 0
        if early:
            copied_bytes += self._forward(early, copies)[1]
            copies = []
        logits, more = self._forward(segments, copies)
        return Executed(logits, copied_tokens, copied_bytes + more, exact=self._grid is not None)

    def _forward(self, segments: list[Segment], copies: list[BlockCopy]) -> tuple[torch.Tensor | None, int]:
        step, pending = build_step(segments, self.layers, device=self.device, grid=self._grid, copies=copies)
        copied = self.pools.copy(pending)
        logits = self.model.forward(step, self.pools)
        return (logits if len(logits) else None), copied

    def _segments(
        self, chunk: Chunk, tables: tuple[Int64, ...], scheduler: Scheduler
    ) -> tuple[Segment | None, Segment]:
        """The chunk as one share, or as two where a state is exported between them."""
        start, stop = chunk.start, chunk.start + chunk.num_tokens
        ids = self._tokens(chunk.sequence, start, stop)
        exports: dict[int, int] = {}
        position = 0
        states = zip(scheduler.coordinator.managers, chunk.sequence.states, strict=True)
        for manager, state in states:
            if isinstance(state, StateTable) and state.export is not None:
                position, place = state.export
                exports.update(dict.fromkeys(range(manager.place, manager.place + manager.members), place))
        if not exports:
            return None, Segment(ids, start, tables, chunk.samples)
        first = Segment(ids[: position - start], start, tables, emit=False, writes_at=exports)
        return first, Segment(ids[position - start :], position, tables, chunk.samples, reads_at=exports)

    def _copies(self, plan: StepPlan, tables: list[tuple[Int64, ...]]) -> list[BlockCopy]:
        """The plan's copies with their group and length.

        A block is in one group at a time, and one end of every copy stands in the table of the request it is made
        for: the private copy of a shared block, or the block that a producer goes on writing.
        """
        copies = []
        for source, target in plan.copies:
            chunk, group = self._owner(plan, tables, source.block_id, target.block_id)
            tokens = chunk.start % self.layers[group].group.block_size
            copies.append(BlockCopy(group, source.block_id, target.block_id, tokens))
        return copies

    @staticmethod
    def _owner(
        plan: StepPlan, tables: list[tuple[Int64, ...]], source: int, target: int
    ) -> tuple[Chunk, int]:
        for wanted in (target, source):
            for chunk, groups in zip(plan.chunks, tables, strict=True):
                for group, table in enumerate(groups):
                    if wanted in table:
                        return chunk, group
        raise LookupError(f"no scheduled request holds block {source} or {target}")
