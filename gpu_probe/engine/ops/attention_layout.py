"""Which keys each query of a step reads, as page indices and masks: what all attention layers of a group share.

A key is at an absolute position; a query at position p sees keys from `p - window + 1` (or 0) to p. Pages are
gathered whole, so keys that were never written may lie behind the last position: they are cut off or zeroed,
because a masked NaN would still spoil the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from kvtune.gpu_probe.engine.grid import ExactGrid, round_up
from kvtune.gpu_probe.engine.step import Int64, Step

Tensor = torch.Tensor

QUERY_TILE = 256
"""Queries per call of long shares: bounds the mask, and spares keys that no query of the tile sees."""

PADDING_LIMIT = 1.25
"""A batch of single tokens is split where padding to its longest member would cost more than this."""


@dataclass(frozen=True)
class Share:
    """Queries of one sequence: rows `first_row` to `last_row - 1`, keys `first_key` to `last_key - 1`.

    `pages` int64[n] hold the keys, the first of them at offset `skip`. `tiles`: (first row, last row, first key,
    last key, mask) relative to the share's rows and keys; mask None: causal from the very beginning.
    """

    first_row: int
    last_row: int
    pages: Tensor
    skip: int
    num_keys: int
    tiles: tuple[tuple[int, int, int, int, Tensor | None], ...]


@dataclass(frozen=True)
class Batch:
    """Tiles of queries with keys of their own: rows int64[B, q] (the row after the last: a zero row).

    Attributes:
        pages: int64[B * n]; `unwritten`: flat places among B * n * page keys to zero.
        mask: dtype[B, 1, q, n * page], added to scores; `share_keys`: all tiles read the keys of the first.
        out_rows, out_places: int64[t], rows of the step and their place among B * q.
    """

    rows: Tensor
    pages: Tensor
    unwritten: Tensor
    mask: Tensor
    share_keys: bool
    out_rows: Tensor
    out_places: Tensor


@dataclass(frozen=True)
class AttentionLayout:
    """All queries of a step, once each."""

    shares: tuple[Share, ...]
    batches: tuple[Batch, ...]


@dataclass(frozen=True)
class Paging:
    """How a group's keys lie and which of them a query sees.

    `window` None: all up to its own. Page p of block b is kernel page `b * stride + p` of the pool.
    """

    group: int
    window: int | None
    page: int
    pages_per_block: int
    stride: int

    def first_key(self, position: Int64) -> Int64:
        """The first key that a query at `position` sees."""
        if self.window is None:
            return np.zeros_like(position)
        return np.maximum(position - self.window + 1, 0)


def fast_layout(step: Step, paging: Paging, dtype: torch.dtype) -> AttentionLayout:
    """Long shares one by one over exactly their keys, single tokens in padded batches."""
    shares = tuple(_share(step, int(b), paging, dtype) for b in np.flatnonzero(step.lengths > 1))
    single = np.flatnonzero(step.lengths == 1)
    at = step.starts[single]
    low = paging.first_key(at) // paging.page * paging.page
    batches = tuple(
        _batch(step, single[chosen], at[chosen][:, None], low[chosen], paging, dtype)
        for chosen in _similar((at - low) // paging.page + 1)
    )
    return AttentionLayout(shares, batches)


def exact_layout(step: Step, paging: Paging, dtype: torch.dtype, grid: ExactGrid) -> AttentionLayout:
    """Every query in a tile at an absolute position, over whole key tiles from an absolute position.

    Key tiles that are masked as a whole leave a result's bits alone, so tiles are batched over the union of theirs.
    """
    tile, keys = grid.query_tile, grid.key_tile
    ends = step.starts + step.lengths
    first = step.starts // tile * tile
    wide = ends - first > tile
    batches = []
    for b in np.flatnonzero(wide):
        at = np.arange(first[b], round_up(int(ends[b]), tile)).reshape(-1, tile)
        low = paging.first_key(at[:, 0]) // keys * keys
        stop = -(-np.minimum(at[:, -1] + 1, ends[b]) // keys) * keys
        changes = np.flatnonzero((np.diff(low) != 0) | (np.diff(stop) != 0)) + 1
        batches += [
            _batch(step, np.full(len(run), b), at[run], low[run[:1]], paging, dtype, grid, stop[run[:1]])
            for run in np.split(np.arange(len(at)), changes)
        ]
    low = paging.first_key(first) // keys * keys
    narrow = np.flatnonzero(~wide)
    batches.extend(
        _batch(step, chosen, first[chosen][:, None] + np.arange(tile), low[chosen], paging, dtype, grid)
        for chosen in (narrow[found] for found in _similar(-(-(ends - low)[narrow] // keys)))
    )
    return AttentionLayout((), tuple(batches))


def _similar(sizes: Int64) -> Iterator[Int64]:
    """Indices in batches whose padded size stays within `PADDING_LIMIT` of the sum of their sizes."""
    order = np.argsort(sizes, kind="stable")
    start = 0
    while start < len(order):
        # The longest of a batch is its last; grow while padding stays cheap.
        cumulative = np.cumsum(sizes[order[start:]])
        padded = sizes[order[start:]] * np.arange(1, len(order) - start + 1)
        fits = padded <= PADDING_LIMIT * cumulative
        stop = len(fits) if fits.all() else int(np.argmin(fits))
        yield order[start : start + stop]
        start += stop


def _share(step: Step, b: int, paging: Paging, dtype: torch.dtype) -> Share:
    start, length = int(step.starts[b]), int(step.lengths[b])
    end = start + length
    window, page, per_block = paging.window, paging.page, paging.pages_per_block
    first_key = 0 if window is None else max(start - window + 1, 0)
    number = np.arange(first_key // page, -(-end // page))
    pages = step.tables[paging.group][b][number // per_block] * paging.stride + number % per_block
    tiles = []
    for first in range(0, length, QUERY_TILE):
        last = min(first + QUERY_TILE, length)
        low = 0 if window is None else max(start + first - window + 1, 0)
        high = start + last
        mask = None
        if start + first > 0 or (window is not None and high > window):
            query = torch.arange(start + first, high, device=step.device)[:, None]
            key = torch.arange(low, high, device=step.device)[None]
            mask = _additive(key, query, window, dtype)
        tiles.append((first, last, low - first_key, high - first_key, mask))
    row = int(step.first_row[b])
    return Share(row, row + length, step.upload(pages), first_key % page, end - first_key, tuple(tiles))


def _batch(
    step: Step,
    members: Int64,
    at: Int64,
    low: Int64,
    paging: Paging,
    dtype: torch.dtype,
    grid: ExactGrid | None = None,
    stop: Int64 | None = None,
) -> Batch:
    """Tiles at positions `at` int64[B, q] of sequences `members`, keys from `low` on.

    `low` int64[B], or int64[1] where all tiles read the keys of the first one's sequence; up to `stop` (the end of
    the sequence's share). Positions outside the share are no queries.
    """
    page, per_block = paging.page, paging.pages_per_block
    start, end = step.starts[members][:, None], (step.starts + step.lengths)[members][:, None]
    owners = members[: len(low)]
    last = end[: len(low)] if stop is None else np.minimum(end[: len(low)], stop[:, None])
    count = round_up(int((last[:, 0] - low).max()), page if grid is None else grid.key_tile)
    number = low[:, None] // page + np.arange(count // page)
    written = number * page < last
    block = np.where(written, number // per_block, 0)
    pages = (
        np.take_along_axis(step.tables[paging.group][owners], block, 1) * paging.stride + number % per_block
    )
    key = low[:, None] + np.arange(count)
    unwritten = np.flatnonzero((key >= last) & np.repeat(written, page, axis=1))
    asked = (at >= start) & (at < end)
    rows = np.where(asked, step.first_row[members][:, None] + at - start, step.rows)
    places = np.flatnonzero(asked)
    query = step.upload(np.where(asked, at, -1))
    return Batch(
        rows=step.upload(rows),
        pages=step.upload(np.where(written, pages, 0).ravel()),
        unwritten=step.upload(unwritten),
        mask=_additive(step.upload(key)[:, None, None], query[:, None, :, None], paging.window, dtype),
        share_keys=len(low) < len(members),
        out_rows=step.upload(rows.ravel()[places]),
        out_places=step.upload(places),
    )


def _additive(key: Tensor, query: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    """0 where a query sees a key, -inf elsewhere."""
    hidden = key > query
    if window is not None:
        hidden = hidden | (key <= query - window)
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))
