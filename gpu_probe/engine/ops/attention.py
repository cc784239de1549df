"""Attention over paged keys and values: gather pages, then the library's attention; nothing is decided here.

Queries that share a kv head are folded where keys are read once for all of them. On CUDA, torch's varlen
attention takes a whole step in one call where it is there and the type suits it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvtune.gpu_probe.engine.grid import ExactGrid
from kvtune.gpu_probe.engine.ops.attention_layout import (
    AttentionLayout,
    Batch,
    Paging,
    Share,
    exact_layout,
    fast_layout,
)
from kvtune.gpu_probe.engine.pools import KVLayer
from kvtune.gpu_probe.engine.spec import Attention
from kvtune.gpu_probe.engine.step import Step

Tensor = torch.Tensor


def store(step: Step, group: int, key: Tensor, value: Tensor, cache: KVLayer) -> None:
    """Writes the step's keys and values [T, K, D] to their slots."""
    block, offset = step.slots[group]
    tokens = cache.pages.flatten(0, 1)
    slots = step.plan(("slots", group, cache.stride), lambda: block * (cache.stride * cache.page) + offset)
    tokens.index_copy_(0, slots, key[: step.num_tokens])
    tokens.index_copy_(0, slots + cache.values_at * cache.page, value[: step.num_tokens])


def attend(
    step: Step, group: int, spec: Attention, query: Tensor, cache: KVLayer, grid: ExactGrid | None
) -> Tensor:
    """query [T, H, D] over the keys and values that the step's tables name -> [T, H, D]."""
    varlen = None if grid is not None else varlen_attention(query)
    if varlen is not None:
        return _varlen(step, group, spec, query, cache, varlen)
    paging = Paging(group, spec.window, cache.page, cache.values_at, cache.stride)

    def build() -> AttentionLayout:
        if grid is not None and grid.attention_grid:
            return exact_layout(step, paging, query.dtype, grid)
        return fast_layout(step, paging, query.dtype)

    layout = step.plan(paging, build)
    out = torch.zeros_like(query)
    for share in layout.shares:
        _attend_share(share, spec, query, cache, out)
    for batch in layout.batches:
        _attend_batch(batch, spec, query, cache, out)
    return out


def _gather(cache: KVLayer, pages: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of kernel pages int64[n]: [n * page, K, D] each."""
    keys, values = (cache.pages.index_select(0, at) for at in (pages, pages + cache.values_at))
    return keys.flatten(0, 1), values.flatten(0, 1)


def _attend_share(share: Share, spec: Attention, query: Tensor, cache: KVLayer, out: Tensor) -> None:
    kept = slice(share.skip, share.skip + share.num_keys)
    keys, values = (tensor[kept].transpose(0, 1) for tensor in _gather(cache, share.pages))  # [K, keys, D]
    heads = spec.num_heads // spec.num_kv_heads
    folded = (
        query[share.first_row : share.last_row].unflatten(1, (spec.num_kv_heads, heads)).permute(1, 2, 0, 3)
    )
    for first, last, low, high, mask in share.tiles:
        # Heads that share keys read them through a stride of zero: [K, heads, keys, D].
        shape = (spec.num_kv_heads, heads, high - low, spec.head_dim)
        result = scaled_dot_product_attention(
            folded[:, :, first:last],
            keys[:, None, low:high].expand(shape),
            values[:, None, low:high].expand(shape),
            attn_mask=mask,
            is_causal=mask is None,
            scale=spec.scale,
        )
        out[share.first_row + first : share.first_row + last] = result.permute(2, 0, 1, 3).flatten(1, 2)


def _attend_batch(batch: Batch, spec: Attention, query: Tensor, cache: KVLayer, out: Tensor) -> None:
    tiles, width = batch.rows.shape
    heads = spec.num_heads // spec.num_kv_heads
    owners = 1 if batch.share_keys else tiles

    def by_head(found: Tensor) -> Tensor:
        found.index_fill_(0, batch.unwritten, 0)
        return (
            found.view(owners, -1, spec.num_kv_heads, spec.head_dim).transpose(1, 2).expand(tiles, -1, -1, -1)
        )

    keys, values = map(by_head, _gather(cache, batch.pages))
    padded = torch.cat([query, query.new_zeros(1, *query.shape[1:])])
    # [B, K, q * heads, D]: the queries of all heads that share keys stand together.
    folded = padded[batch.rows].unflatten(2, (spec.num_kv_heads, heads)).permute(0, 2, 1, 3, 4).flatten(2, 3)
    mask = batch.mask if width == 1 else batch.mask.repeat_interleave(heads, 2)
    result = scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=spec.scale)
    result = (
        result.unflatten(2, (width, heads)).permute(0, 2, 1, 3, 4).reshape(tiles * width, spec.num_heads, -1)
    )
    out[batch.out_rows] = result[batch.out_places]


def varlen_attention(query: Tensor) -> Callable[..., Any] | None:
    """torch's packed attention, where this torch has it and the device and type suit it (CUDA, half types)."""
    if query.device.type != "cuda" or query.dtype not in (torch.float16, torch.bfloat16):
        return None
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    # Older forms cannot express a window or a scale.
    known = inspect.signature(varlen_attn).parameters
    return varlen_attn if "window_size" in known and "scale" in known else None


def _varlen(
    step: Step, group: int, spec: Attention, query: Tensor, cache: KVLayer, varlen: Callable[..., Any]
) -> Tensor:
    """One call for the whole step over gathered, packed keys.

    A window's lower end need not be cut exactly: the kernel's own window masks the rest of the first page.
    """

    block_size = cache.page * cache.values_at

    def build() -> tuple[Tensor, Tensor, Tensor, int, int]:
        first = 0 * step.starts
        if spec.window is not None:
            first = (step.starts - spec.window + 1).clip(min=0) // cache.page * cache.page
        ends = step.starts + step.lengths
        parts, lengths = [], []
        for b in range(step.num_sequences):
            at = torch.arange(int(first[b]), int(ends[b]))
            table = torch.from_numpy(step.tables[group][b])
            parts.append(table[at // block_size] * (cache.stride * cache.page) + at % block_size)
            lengths.append(len(at))
        rows = torch.cat(parts).to(step.device, non_blocking=True)
        offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(step.device, non_blocking=True)
        queries = step.upload(step.first_row).to(torch.int32)
        return rows, queries, offsets, int(step.lengths.max()), max(lengths)

    rows, queries, offsets, longest_query, longest_key = step.plan(("varlen", group, spec.window), build)
    heads = spec.num_heads // spec.num_kv_heads
    tokens = cache.pages.flatten(0, 1)
    keys, values = tokens[rows], tokens[rows + block_size]
    grouped: dict[str, bool] = {}
    if heads > 1 and "enable_gqa" in inspect.signature(varlen).parameters:
        grouped = {"enable_gqa": True}
    elif heads > 1:
        keys, values = keys.repeat_interleave(heads, 1), values.repeat_interleave(heads, 1)
    out = torch.zeros_like(query)
    out[: step.num_tokens] = varlen(
        query[: step.num_tokens].contiguous(),
        keys,
        values,
        queries,
        offsets,
        longest_query,
        longest_key,
        scale=spec.scale,
        # The window counts the keys to the left of the query's own; -1 is no bound.
        window_size=(-1 if spec.window is None else spec.window - 1, 0),
        **grouped,
    )
    return out
