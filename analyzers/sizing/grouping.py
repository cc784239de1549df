"""Layers into KV cache groups: which layers share a block table, in which order, with how many blocks.

    layers, in order --> buckets of like layers --> each bucket dealt into groups of one size --> groups

A group's place in the list decides which block is evicted first, so order matters: it is the order in which kinds
first appear. Facts of `vllm/v1/core/kv_cache_planning.py` (0.33; up to 0.32 `kv_cache_utils.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvtune.analyzers.layout import Kind
from kvtune.tokenization.errors import UnusableInputError


@dataclass(frozen=True)
class LayerSpec:
    """One layer's cache: what must be equal for layers to share a group.

    Attributes:
        page_bytes: of one block on one rank. shape: what tells specs of one kind apart.
        latent: its page can only grow by whole rows. replicated: every rank holds the whole state.
        draft: a draft model's layer; never keeps layers apart.
    """

    kind: Kind
    block_size: int
    page_bytes: int
    shape: tuple[object, ...]
    window: int | None = None
    latent: bool = False
    tokens_per_state: int = 1
    cacheable: bool = True
    replicated: bool = False
    draft: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class GroupedLayers:
    """Layers that share one block table.

    Attributes:
        spec: of the layers with the largest page. layers: how many those are.
        tokens_per_state: compression that boundaries must respect, over all layers.
        draft: holds draft layers.
    """

    spec: LayerSpec
    layers: int
    tokens_per_state: int
    draft: bool

    @classmethod
    def of(cls, specs: Sequence[LayerSpec]) -> GroupedLayers:
        main = max(specs, key=lambda spec: spec.page_bytes)
        return cls(
            spec=main,
            layers=sum(spec.page_bytes == main.page_bytes for spec in specs),
            tokens_per_state=math.lcm(*(spec.tokens_per_state for spec in specs)),
            draft=any(spec.draft for spec in specs),
        )


@dataclass(frozen=True)
class Grouping:
    """Groups in the engine's order, and the padding layers that made them equal."""

    groups: tuple[GroupedLayers, ...]
    padding_layers: int
    padding_pct: float


def group_layers(specs: Sequence[LayerSpec], *, packed: bool = False) -> Grouping:
    """Group layers as the engine does.

    Args:
        packed: the engine's memory layout takes layers of different pages side by side in one block.
    Raises:
        UnusableInputError: pages that cannot be made equal.
    """
    if _one_group(specs):
        return Grouping((GroupedLayers.of(specs),), 0, 0.0)
    if packed and len({spec.page_bytes for spec in specs}) > 1:
        return _pack(specs)
    return _deal(_equal_pages(specs))


def _one_group(specs: Sequence[LayerSpec]) -> bool:
    """All layers need the same number of token slots: one kind, one block, one window."""
    first = specs[0]
    if first.kind == "mamba":
        return all(
            (spec.kind, spec.page_bytes, spec.replicated) == ("mamba", first.page_bytes, first.replicated)
            for spec in specs
        )
    return all(
        (spec.kind, spec.block_size, spec.window, spec.cacheable)
        == (first.kind, first.block_size, first.window, first.cacheable)
        for spec in specs
    )


def _equal_pages(specs: Sequence[LayerSpec]) -> list[LayerSpec]:
    """Every page becomes the largest one: attention by larger blocks where they divide it, else by padding."""
    largest = max(spec.page_bytes for spec in specs)
    equal = []
    for spec in specs:
        if spec.page_bytes == largest or spec.kind == "mamba":
            equal.append(replace(spec, page_bytes=largest))
        elif largest % spec.page_bytes == 0:
            ratio = largest // spec.page_bytes
            equal.append(replace(spec, block_size=spec.block_size * ratio, page_bytes=largest))
        elif not spec.latent:
            equal.append(replace(spec, page_bytes=largest))
        else:
            raise UnusableInputError(
                "the engine cannot give all layers one page size",
                found=f"a latent attention page of {spec.page_bytes:,} bytes beside one of {largest:,}",
                wanted="a multiple",
                way_out="a smaller drafter page, or another KV cache dtype",
            )
    return equal


def _deal(specs: Sequence[LayerSpec]) -> Grouping:
    """Buckets of equal layers, dealt round-robin into groups of as many layers as the smallest bucket has.

    Where the largest bucket is less than half as large again, its size is taken: a little padding costs less than
    twice the groups.
    """
    buckets: dict[LayerSpec, list[LayerSpec]] = {}
    for spec in specs:
        buckets.setdefault(spec, []).append(spec)
    smallest = min(len(bucket) for bucket in buckets.values())
    largest = max(len(bucket) for bucket in buckets.values())
    size = largest if largest < 1.5 * smallest else smallest
    groups: list[GroupedLayers] = []
    padding = 0
    worst = 0.0
    for bucket in buckets.values():
        missing = -len(bucket) % size
        padding += missing
        worst = max(worst, 100 * missing / len(bucket))
        parts = -(-len(bucket) // size)
        groups += [GroupedLayers.of(bucket[part::parts]) for part in range(parts)]
    return Grouping(tuple(groups), padding, round(worst, 2))


def _pack(specs: Sequence[LayerSpec]) -> Grouping:
    """Layers of several page sizes side by side in one block: no page is padded and no block is enlarged."""
    buckets: list[list[LayerSpec]] = []
    for spec in specs:
        home = next((bucket for bucket in buckets if _packs_with(bucket[0], spec)), None)
        if home is None:
            buckets.append([spec])
        else:
            home.append(spec)
    repeats = _repeats_per_group(buckets)
    parts = [-(-_repeats(bucket) // repeats) if _is_balanced(bucket) else 1 for bucket in buckets]
    anchor = max(
        _widest(bucket, len(bucket) if _is_state(bucket[0]) else part)
        for bucket, part in zip(buckets, parts, strict=True)
    )
    groups: list[GroupedLayers] = []
    for bucket, part in zip(buckets, parts, strict=True):
        if _is_state(bucket[0]):
            fitting = max(anchor // bucket[0].page_bytes, 1)
            part = max(part, -(-len(bucket) // fitting))
        by_page = [[spec for spec in bucket if spec.page_bytes == page] for page in _by_page(bucket)]
        groups += [
            GroupedLayers.of([spec for layers in by_page for spec in layers[index::part]])
            for index in range(part)
        ]
    return Grouping(tuple(groups), 0, 0.0)


def _packs_with(first: LayerSpec, spec: LayerSpec) -> bool:
    same = (first.kind, first.block_size, first.window, first.cacheable, first.replicated) == (
        spec.kind,
        spec.block_size,
        spec.window,
        spec.cacheable,
        spec.replicated,
    )
    return same and (first.kind != "mamba" or first.page_bytes == spec.page_bytes)


def _is_state(spec: LayerSpec) -> bool:
    return spec.kind == "mamba" or not spec.cacheable


def _by_page(bucket: Sequence[LayerSpec]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for spec in bucket:
        counts[spec.page_bytes] = counts.get(spec.page_bytes, 0) + 1
    return counts


def _is_balanced(bucket: Sequence[LayerSpec]) -> bool:
    """As many layers of each page size: the bucket is a repeated pattern."""
    return len(set(_by_page(bucket).values())) == 1


def _repeats(bucket: Sequence[LayerSpec]) -> int:
    return max(_by_page(bucket).values())


def _repeats_per_group(buckets: Sequence[Sequence[LayerSpec]]) -> int:
    """How often the pattern is repeated in one group: the count that wastes the fewest places, the larger on a tie."""
    mixed = [_repeats(bucket) for bucket in buckets if _is_balanced(bucket) and len(_by_page(bucket)) > 1]
    if not mixed:
        return max(len(bucket) for bucket in buckets)
    counts = [_repeats(bucket) for bucket in buckets if _is_balanced(bucket)]
    candidates = range(max(mixed), max(counts) + 1)
    return min(candidates, key=lambda size: (sum(-count % size for count in counts), -size))


def _widest(bucket: Sequence[LayerSpec], parts: int) -> int:
    """Bytes of the largest of `parts` groups."""
    return sum(-(-count // parts) * page for page, count in _by_page(bucket).items())
