"""`ScanLayout`: the rows of a step laid out in chunks of Q tokens, so that all chunks are computed at once.

Fast runs start a chunk at each share's first token. Exact runs count chunks from the sequence's beginning: rows
that an earlier step computed since the last boundary come first (from the open chunk that the state carries), and
the state that is kept is the one at the last boundary.

    sequence at 70, 30 tokens, Q = 32      chunk 64..95             chunk 96..127
    exact                                  o o o o o o r r ... r    r r r r . . .      o open, r row, . padding
    kept                                   state at 96 and the inputs of 96..99
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvtune.gpu_probe.engine.grid import FAST_SCAN_CHUNK, ExactGrid, round_up
from kvtune.gpu_probe.engine.step import Int64, Step

Chunks = torch.Tensor | slice


@dataclass(frozen=True)
class ScanLayout:
    """Index arrays on the device; N chunks of `chunk` tokens, S sequences in order of falling chunk count.

    Chunks beyond the sequences' own are padding.

    Attributes:
        sequences: int64[S], which sequences of the step take part.
        gather: int64[N * chunk], source row of each place: a row of the step, then an open-chunk row
            (`rows + b * chunk + r`), then one row of zeros.
        rounds: per round i the chunks int64[n] (the i-th of the first n sequences; a slice where there is but one)
            and whether each is closed, None where all are.
        lead: of the only sequence, the open-chunk rows before its own, which then follow in order; None where there
            are several.
        rows, places: int64[t], the step's rows that take part, and their place among N * chunk.
        open_places: int64[S, chunk], places of the inputs since the last boundary (N * chunk: zeros).
    """

    chunk: int
    num_chunks: int
    sequences: torch.Tensor
    gather: torch.Tensor
    rounds: tuple[tuple[Chunks, torch.Tensor | None], ...]
    rows: torch.Tensor
    places: torch.Tensor
    open_places: torch.Tensor | None
    lead: int | None


def scan_layout(step: Step, members: Int64, grid: ExactGrid | None) -> ScanLayout:
    """The layout of the sequences `members` (indices into the step).

    Without `grid.chunk_replay` an exact run neither reads nor keeps open chunks; without `grid.scan_grid` its
    chunks start where the share does.
    """
    absolute = grid is not None and grid.scan_grid
    replay = absolute and grid is not None and grid.chunk_replay
    chunk = FAST_SCAN_CHUNK[step.device.type] if grid is None else grid.scan_chunk
    starts, lengths = step.starts[members], step.lengths[members]
    lead = starts % chunk if absolute else np.zeros_like(starts)
    filled = lead + lengths
    counts = -(-filled // chunk)
    order = np.argsort(-counts, kind="stable")
    members, lead, filled, counts, lengths = (
        array[order] for array in (members, lead, filled, counts, lengths)
    )
    closed = filled // chunk if replay else counts
    base = np.concatenate([[0], np.cumsum(counts)])
    num_chunks = int(base[-1])
    if grid is not None and grid.padded_rows:
        num_chunks = round_up(num_chunks, max(1, grid.row_multiple // chunk))
    num_places = num_chunks * chunk

    zero_row = step.rows + (step.num_sequences * chunk if replay else 0)
    gather = np.full(num_places, zero_row, dtype=np.int64)
    total = int(lengths.sum())
    owner = np.repeat(np.arange(len(members)), lengths)
    within = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = base[owner] * chunk + lead[owner] + within
    rows = step.first_row[members][owner] + within
    gather[places] = rows
    if replay:
        earlier = np.repeat(np.arange(len(members)), lead)
        offset = np.arange(int(lead.sum())) - np.repeat(np.cumsum(lead) - lead, lead)
        gather[base[earlier] * chunk + offset] = step.rows + members[earlier] * chunk + offset

    rounds = []
    for i in range(int(counts.max(initial=0))):
        active = int(np.searchsorted(-counts, -i, side="left"))
        done = closed[:active] > i
        chunks: Chunks = slice(i, i + 1) if len(members) == 1 else step.upload(base[:active] + i)
        rounds.append((chunks, None if done.all() else step.upload(done.astype(np.int64)).bool()))
    open_places = None
    if replay:
        remainder = filled % chunk
        offset = np.arange(chunk)
        open_places = (base[:-1] + closed)[:, None] * chunk + offset
        open_places = np.where(offset < remainder[:, None], open_places, num_places)
    return ScanLayout(
        chunk=chunk,
        num_chunks=num_chunks,
        sequences=step.upload(members),
        gather=step.upload(gather),
        rounds=tuple(rounds),
        rows=step.upload(rows),
        places=step.upload(places),
        open_places=None if open_places is None else step.upload(open_places),
        lead=int(lead[0]) if len(members) == 1 and step.num_sequences == 1 else None,
    )
