"""`Step`: one engine step as packed arrays: which rows belong to which sequence, and where its cache lies.

T tokens of B sequences stand one after another; rows beyond T are padding (exact runs only) and are written
nowhere. Built on the host from plain lists and uploaded once, so that the forward pass never waits for a device
value. Knows block tables and positions; not why they are what they are.

    sequence   0            1        2
    rows       0 . . . . 4  5        6 . . 8     | padding
    position   528 . . 532  1040     0 . . 2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from kvtune.gpu_probe.engine.grid import ExactGrid, round_up
from kvtune.gpu_probe.engine.pools import BlockCopy, GroupLayers

Int64 = npt.NDArray[np.int64]
Plan = TypeVar("Plan")


@dataclass(frozen=True)
class Segment:
    """One sequence's share of a step: its tokens at positions `start` to `start + len(ids) - 1`.

    Attributes:
        ids: int64[n], token ids.
        tables: per KV cache group the block ids from the sequence's beginning (0: the null block), long enough
            for all positions up to the end of this share.
        emit: whether the last token's logits are wanted.
        reads_at, writes_at: per recurrent group the table position of the state read and written, where it is not
            that of the position before `start` and of the last position (a state exported from inside a chunk).
    """

    ids: Int64
    start: int
    tables: tuple[Sequence[int] | Int64, ...]
    emit: bool = True
    reads_at: Mapping[int, int] = field(default_factory=dict)
    writes_at: Mapping[int, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


@dataclass
class Step:
    """A packed step on a device.

    Attributes:
        starts, lengths: int64[B] on the host.
        first_row: int64[B + 1] on the host; sequence b has rows `first_row[b]` to `first_row[b + 1] - 1`.
        rows: number of rows, padding included; `num_tokens` without.
        ids, positions: int64[rows] on the device. `emit`: int64[E], rows whose logits are wanted, by sequence.
        tables: per group int64[B, longest] on the host, filled up with the null block.
        slots: per attention group (block, offset) int64[T] each, where each token's key and value go.
        state_source, state_target: per recurrent group int64[B], the blocks of the states read and written.
    """

    device: torch.device
    starts: Int64
    lengths: Int64
    first_row: Int64
    rows: int
    ids: torch.Tensor
    positions: torch.Tensor
    emit: torch.Tensor
    tables: tuple[Int64, ...]
    slots: dict[int, tuple[torch.Tensor, torch.Tensor]]
    state_source: dict[int, torch.Tensor]
    state_target: dict[int, torch.Tensor]
    grid: ExactGrid | None
    _plans: dict[object, object] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return int(self.first_row[-1])

    @property
    def num_sequences(self) -> int:
        return len(self.starts)

    def plan(self, key: object, build: Callable[[], Plan]) -> Plan:
        """What several layers of a step derive alike, built by the first that asks."""
        if key not in self._plans:
            self._plans[key] = build()
        return self._plans[key]  # type: ignore[return-value]

    def upload(self, values: Int64) -> torch.Tensor:
        """An index array on the step's device."""
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device, non_blocking=True)


def build_step(
    segments: Sequence[Segment],
    layers: Sequence[GroupLayers],
    *,
    device: torch.device | str = "cpu",
    grid: ExactGrid | None = None,
    copies: Sequence[BlockCopy] = (),
) -> tuple[Step, list[BlockCopy]]:
    """Packs segments.

    Returns:
        The step, and those of `copies` that must be performed before it. A state whose copy this step
        overwrites anyway is read from the original instead.
    """
    device = torch.device(device)
    lengths = np.array([len(segment.ids) for segment in segments], dtype=np.int64)
    starts = np.array([segment.start for segment in segments], dtype=np.int64)
    first_row = np.concatenate([[0], np.cumsum(lengths)])
    total = int(first_row[-1])
    rows = round_up(total, grid.row_multiple) if grid is not None and grid.padded_rows else total
    sequence = np.repeat(np.arange(len(segments)), lengths)
    positions = np.zeros(rows, dtype=np.int64)
    positions[:total] = np.arange(total) - first_row[sequence] + starts[sequence]
    ids = np.zeros(rows, dtype=np.int64)
    ids[:total] = np.concatenate([segment.ids for segment in segments])
    emit = np.array(
        [row - 1 for row, segment in zip(first_row[1:], segments, strict=True) if segment.emit],
        dtype=np.int64,
    )

    tables, slots, sources, targets = [], {}, {}, {}
    pending = list(copies)
    for index, group in enumerate(layers):
        table = _pad([segment.tables[index] for segment in segments])
        tables.append(table)
        size = group.group.block_size
        if group.recurrent:
            row = np.arange(len(segments))
            reads, writes = np.maximum(starts - 1, 0) // size, (starts + lengths - 1) // size
            for b, segment in enumerate(segments):
                reads[b] = segment.reads_at.get(index, reads[b])
                writes[b] = segment.writes_at.get(index, writes[b])
            source = np.where(starts > 0, table[row, reads], 0)
            target = table[row, writes]
            source, pending = _redirect(index, source, target, pending)
            sources[index], targets[index] = source, target
        elif group.blocks:
            at = positions[:total]
            slots[index] = (table[sequence, at // size], at % size)

    def upload(values: Int64) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device, non_blocking=True)

    step = Step(
        device=device,
        starts=starts,
        lengths=lengths,
        first_row=first_row,
        rows=rows,
        ids=upload(ids),
        positions=upload(positions),
        emit=upload(emit),
        tables=tuple(tables),
        slots={index: (upload(block), upload(offset)) for index, (block, offset) in slots.items()},
        state_source={index: upload(values) for index, values in sources.items()},
        state_target={index: upload(values) for index, values in targets.items()},
        grid=grid,
    )
    return step, pending


def _pad(tables: Sequence[Sequence[int] | Int64]) -> Int64:
    padded = np.zeros((len(tables), max(map(len, tables), default=0)), dtype=np.int64)
    for row, table in enumerate(tables):
        padded[row, : len(table)] = table
    return padded


def _redirect(
    group: int, source: Int64, target: Int64, copies: list[BlockCopy]
) -> tuple[Int64, list[BlockCopy]]:
    """Reads states from where a copy would have read them, where the copy would be overwritten by this step."""
    kept = []
    for item in copies:
        rows = (
            np.flatnonzero((source == item.target) & (target == item.target)) if item.group == group else ()
        )
        if len(rows):
            source = source.copy()
            source[rows] = item.source
        else:
            kept.append(item)
    return source, kept
