"""`CachePools`: the memory behind block ids, one pool of pages shared by all KV cache groups.

Block id i is page i of every layer row; a group sees the page as its own kind: keys and values, or a recurrent
state. As in the engine that is modelled, a page is as large as the largest of its views, and a block belongs to
one group at a time, so the views may share bytes.

    layer row 0   | page 0 (null) | page 1 | page 2 | ...        page = keys, values        (attention groups)
    layer row 1   | page 0 (null) | page 1 | page 2 | ...             = conv | state | open (recurrent groups)

Page 0 is the null block: zeros, never written; fresh sequences read their initial state from it and short block
tables are filled up with it. Knows nothing of who owns a block or why one is copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from kvtune.analyzers.layout import KVCacheGroup
from kvtune.gpu_probe.engine.grid import round_up
from kvtune.gpu_probe.engine.spec import Attention, ModelSpec, Recurrent, ShortConv, mixer_kind
from kvtune.tokenization.errors import UnusableInputError

ALIGNMENT = 64
"""Bytes to which pages and the parts of a state are aligned."""


@dataclass(frozen=True)
class GroupLayers:
    """A KV cache group and the blocks of the model that keep their cache in it.

    Attributes:
        group: its sizes; `group.block_size` tokens share one block.
        recurrent: whether a block holds one state (else one key and value per token).
        blocks: indices into `ModelSpec.blocks`; block i of the list uses layer row i of the pool.
    """

    group: KVCacheGroup
    recurrent: bool
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class BlockCopy:
    """Copy the first `tokens` tokens of a block (a recurrent block: its state) before the step runs."""

    group: int
    source: int
    target: int
    tokens: int


@dataclass(frozen=True)
class KVLayer:
    """One attention layer's keys and values.

    Attributes:
        keys, values: [num_blocks, block_size, kv heads, head_dim].
        pages: [n, page, kv heads, head_dim], the same memory as one run of kernel pages: page p of block b holds
            keys at `b * stride + p` and values `values_at` pages further on.
    """

    keys: torch.Tensor
    values: torch.Tensor
    pages: torch.Tensor
    stride: int
    values_at: int

    @property
    def page(self) -> int:
        return self.pages.shape[1]


@dataclass(frozen=True)
class StateLayer:
    """One recurrent layer's states.

    `conv` [num_blocks, kernel - 1, channels], oldest first; `state` [num_blocks, *state_shape];
    `open_chunk` [num_blocks, scan chunk, scan inputs] with the inputs since the last chunk boundary (exact runs).
    """

    conv: torch.Tensor
    state: torch.Tensor | None
    open_chunk: torch.Tensor | None


def assign_layers(spec: ModelSpec, groups: Sequence[KVCacheGroup]) -> tuple[GroupLayers, ...]:
    """Deals the model's layers to the groups of their kind, round robin as the engine does.

    Windowed layers go to `full` groups where no group has a window (the hybrid manager switched off).

    Raises:
        UnusableInputError: a kind of layer has no group, or a group's kind is not built in.
    """
    members: list[list[int]] = [[] for _ in groups]
    takes: dict[str, list[int]] = {"mamba": [], "full": [], "sliding_window": []}
    for index, group in enumerate(groups):
        if group.kind not in takes:
            raise UnusableInputError(
                f"the bundled engine lacks {group.kind} groups",
                field="groups",
                wanted=", ".join(takes),
                way_out="validate on a server with --serve or --endpoint",
            )
        takes[group.kind].append(index)
    dealt: dict[str, int] = {}
    for index, block in enumerate(spec.blocks):
        kind = mixer_kind(block.operator)
        if kind is None:
            continue
        wanted = {"attention": "full", "sliding_window": "sliding_window"}.get(kind, "mamba")
        if wanted == "sliding_window" and not takes[wanted]:
            wanted = "full"
        if not takes[wanted]:
            raise UnusableInputError(
                f"the model has {kind} layers, the groups have no {wanted} group for them",
                field="groups",
                found=", ".join(group.kind for group in groups),
                way_out="give the groups of this model",
            )
        turn = dealt.get(wanted, 0)
        dealt[wanted] = turn + 1
        members[takes[wanted][turn % len(takes[wanted])]].append(index)
    return tuple(
        GroupLayers(group, group.kind == "mamba", tuple(blocks))
        for group, blocks in zip(groups, members, strict=True)
    )


def kernel_page(block_size: int) -> int:
    """Tokens per page that the attention kernels read: 16 to 64 where the block divides, as large as possible."""
    return math.gcd(block_size, 64)


def pool_page_bytes(
    spec: ModelSpec,
    layers: Sequence[GroupLayers],
    *,
    dtype: torch.dtype,
    state_dtype: torch.dtype = torch.float32,
    open_chunk: int = 0,
) -> int:
    """Bytes of one block in all layer rows: what a pool costs per block."""
    return sum(_page_plans(spec, layers, dtype, state_dtype, open_chunk)[1])


class CachePools:
    """All pages, and each layer's view of them."""

    def __init__(
        self,
        spec: ModelSpec,
        layers: Sequence[GroupLayers],
        num_blocks: int,
        *,
        dtype: torch.dtype,
        state_dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        open_chunk: int = 0,
    ) -> None:
        self.num_blocks = num_blocks
        self.device = torch.device(device)
        self.layers = tuple(layers)
        plans, row_bytes = _page_plans(spec, layers, dtype, state_dtype, open_chunk)
        rows = [_allocate(num_blocks, size, self.device) for size in row_bytes]
        self._views: dict[int, KVLayer | StateLayer] = {
            index: page.view(rows[row]) for row, index, page in plans
        }

    def kv(self, block: int) -> KVLayer:
        """The pages of attention block `block` of the model."""
        view = self._views[block]
        assert isinstance(view, KVLayer)
        return view

    def state(self, block: int) -> StateLayer:
        """The states of recurrent block `block` of the model."""
        view = self._views[block]
        assert isinstance(view, StateLayer)
        return view

    def copy(self, copies: Iterable[BlockCopy]) -> int:
        """Performs copies, all reads before all writes; returns the bytes written.

        One gather and one scatter per layer, whatever the number of copies.
        """
        by_group: dict[int, list[BlockCopy]] = {}
        for item in copies:
            by_group.setdefault(item.group, []).append(item)
        copied = 0
        for index, items in by_group.items():
            group = self.layers[index]
            for block in group.blocks:
                view = self._views[block]
                parts = _kv_parts(view, items) if isinstance(view, KVLayer) else _state_parts(view, items)
                for tensor, source, target in parts:
                    moved = tensor[source]
                    tensor[target] = moved
                    copied += moved.numel() * moved.element_size()
        return copied

    def fill(self, value: float) -> None:
        """Overwrites every block but the null block; tests use NaN to find reads of what was never written."""
        for view in self._views.values():
            parts = (
                (view.keys, view.values)
                if isinstance(view, KVLayer)
                else (view.conv, view.state, view.open_chunk)
            )
            for tensor in parts:
                if tensor is not None:
                    tensor[1:] = value


Index = tuple[torch.Tensor, ...]


def _kv_parts(view: KVLayer, items: list[BlockCopy]) -> list[tuple[torch.Tensor, Index, Index]]:
    """Token by token: (block, offset) of what is read and of what is written."""
    device = view.keys.device
    offset = torch.cat([torch.arange(item.tokens) for item in items]).to(device)
    counts = torch.tensor([item.tokens for item in items])
    source = torch.tensor([item.source for item in items]).repeat_interleave(counts).to(device)
    target = torch.tensor([item.target for item in items]).repeat_interleave(counts).to(device)
    return [(tensor, (source, offset), (target, offset)) for tensor in (view.keys, view.values)]


def _state_parts(view: StateLayer, items: list[BlockCopy]) -> list[tuple[torch.Tensor, Index, Index]]:
    device = view.conv.device
    source = torch.tensor([item.source for item in items], device=device)
    target = torch.tensor([item.target for item in items], device=device)
    tensors = [tensor for tensor in (view.conv, view.state, view.open_chunk) if tensor is not None]
    return [(tensor, (source,), (target,)) for tensor in tensors]


@dataclass(frozen=True)
class _Part:
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def view(self, pages: torch.Tensor) -> torch.Tensor:
        """[num_blocks, *shape] over byte pages [num_blocks, page bytes]."""
        typed = pages.view(self.dtype)
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        return typed.as_strided(
            (pages.shape[0], *self.shape), (typed.stride(0), *strides), self.offset // self.dtype.itemsize
        )


@dataclass(frozen=True)
class _KVPage:
    """Keys, then values."""

    keys: _Part
    values: _Part
    page: int

    @property
    def num_bytes(self) -> int:
        return self.keys.num_bytes + self.values.num_bytes

    @property
    def unit_bytes(self) -> int:
        """Pool pages are multiples of kernel pages, so that the latter form one run."""
        return self.keys.num_bytes // self.keys.shape[0] * self.page

    def view(self, pages: torch.Tensor) -> KVLayer:
        run = pages.view(self.keys.dtype).view(-1, self.page, *self.keys.shape[1:])
        block_size = self.keys.shape[0]
        stride = pages.shape[1] // self.unit_bytes
        return KVLayer(self.keys.view(pages), self.values.view(pages), run, stride, block_size // self.page)


@dataclass(frozen=True)
class _StatePage:
    """The convolution's inputs, the state, the inputs of the open chunk."""

    conv: _Part
    state: _Part | None
    open_chunk: _Part | None

    @property
    def num_bytes(self) -> int:
        return max(part.offset + part.num_bytes for part in (self.conv, self.state, self.open_chunk) if part)

    @property
    def unit_bytes(self) -> int:
        return ALIGNMENT

    def view(self, pages: torch.Tensor) -> StateLayer:
        parts = (part.view(pages) if part else None for part in (self.state, self.open_chunk))
        return StateLayer(self.conv.view(pages), *parts)


def _page_plans(
    spec: ModelSpec,
    layers: Sequence[GroupLayers],
    dtype: torch.dtype,
    state_dtype: torch.dtype,
    open_chunk: int,
) -> tuple[list[tuple[int, int, _KVPage | _StatePage]], list[int]]:
    """(layer row, model block, layout) of every cached layer, and the bytes of a page in each row."""
    plans: list[tuple[int, int, _KVPage | _StatePage]] = []
    sizes: list[int] = []
    units: list[int] = []
    for group in layers:
        for row, index in enumerate(group.blocks):
            page = _page(spec.blocks[index].operator, group.group.block_size, dtype, state_dtype, open_chunk)
            plans.append((row, index, page))
            if row == len(sizes):
                sizes.append(0)
                units.append(ALIGNMENT)
            sizes[row] = max(sizes[row], page.num_bytes)
            units[row] = math.lcm(units[row], page.unit_bytes)
    return plans, [round_up(size, unit) for size, unit in zip(sizes, units, strict=True)]


def _page(
    operator: object, block_size: int, dtype: torch.dtype, state_dtype: torch.dtype, open_chunk: int
) -> _KVPage | _StatePage:
    if isinstance(operator, Attention):
        shape = (block_size, operator.num_kv_heads, operator.head_dim)
        keys = _Part(0, shape, dtype)
        return _KVPage(keys, _Part(keys.num_bytes, shape, dtype), kernel_page(block_size))
    assert isinstance(operator, Recurrent)
    conv = _Part(0, (operator.conv_kernel - 1, operator.conv_size), dtype)
    if isinstance(operator, ShortConv):
        return _StatePage(conv, None, None)
    state = _Part(round_up(conv.num_bytes, ALIGNMENT), operator.state_shape, state_dtype)
    inputs = None
    if open_chunk:
        offset = round_up(state.offset + state.num_bytes, ALIGNMENT)
        inputs = _Part(offset, (open_chunk, operator.conv_size + operator.gate_size), state_dtype)
    return _StatePage(conv, state, inputs)


def _allocate(num_blocks: int, page_bytes: int, device: torch.device | str) -> torch.Tensor:
    pages = torch.empty((num_blocks, page_bytes), dtype=torch.uint8, device=device)
    pages[0] = 0
    return pages
