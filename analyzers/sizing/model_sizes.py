"""A model config and the server's flags → the groups, blocks and pages that the engine will resolve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvtune.analyzers.layout import KVCacheGroup
from kvtune.analyzers.sizing.blocks import (
    BlockChoice,
    choose_block,
    kv_cache_dtype,
    state_export_alignment,
    state_pages,
    weights_dtype,
)
from kvtune.analyzers.sizing.families import model_layers
from kvtune.analyzers.sizing.grouping import GroupedLayers, LayerSpec, group_layers
from kvtune.analyzers.sizing.layers import AttentionLayer, Layer, ModelLayers, RingLayer, StateLayer
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.releases import SizingRules, parse_release, sizing_rules
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.analyzers.sizing.states import ShortConvState

OWN_DRAFT_METHODS = frozenset({"mtp", "multi_module_mtp"})
"""Draft methods whose layers are part of the model; other drafters bring a model of their own."""

SEPARATE_DRAFT_METHODS = frozenset({"eagle", "eagle3", "dflash", "dspark", "draft_model"})
"""Draft methods with a model of their own, whose layers add groups that this config says nothing about."""


@dataclass(frozen=True)
class SizedGroup:
    """One KV cache group and how many layers it holds; None where only its block is known."""

    group: KVCacheGroup
    layers: int | None


@dataclass(frozen=True)
class ModelSizes:
    """Everything that follows from a model config and flags.

    Attributes:
        groups: in the engine's order, one by one.
        padding_layers: layers' worth of memory that equal groups waste; padding_layers_pct as the engine logs it.
        release: whose rules were used.
    """

    model: ModelLayers
    flags: ServeFlags
    block: BlockChoice
    groups: tuple[SizedGroup, ...]
    padding_layers: int
    padding_layers_pct: float
    rules: SizingRules


def size_model(config: ModelConfig, flags: ServeFlags) -> ModelSizes:
    """Resolve a model's groups as the engine would.

    Raises:
        UnusableInputError: an unknown family, missing fields, or flags that do not fit the model.
    """
    return size_layers(model_layers(config), flags)


def size_layers(model: ModelLayers, flags: ServeFlags) -> ModelSizes:
    """The same from layers that were read already."""
    rules = sizing_rules(parse_release(flags.version))
    block = choose_block(model, flags, rules)
    drafts = [replace(spec, draft=True) for spec in _specs(_draft_layers(model, flags), model, flags, block)]
    specs = _specs(model.layers, model, flags, block) + drafts
    if flags.disable_hybrid_kv_cache_manager:
        specs = [_promoted(spec, block) for spec in specs]
    grouping = group_layers(specs, packed=model.packed)
    return ModelSizes(
        model=model,
        flags=flags,
        block=block,
        groups=tuple(_sized(group, model, flags, block, rules) for group in grouping.groups),
        padding_layers=grouping.padding_layers,
        padding_layers_pct=grouping.padding_pct,
        rules=rules,
    )


def _draft_layers(model: ModelLayers, flags: ServeFlags) -> tuple[AttentionLayer, ...]:
    uses_own = flags.num_speculative_tokens > 0 and flags.draft_method in OWN_DRAFT_METHODS
    return model.draft_layers if uses_own else ()


def _specs(
    layers: Sequence[Layer], model: ModelLayers, flags: ServeFlags, block: BlockChoice
) -> list[LayerSpec]:
    """Each layer's cache, before pages are made equal. The state page is padded to the attention page."""
    attention_block = block.attention_block_size
    padded = attention_block * block.attention_bytes_per_token if block.attention_bytes_per_token else None
    pages = dict(zip(model.state_layers, state_pages(model, flags), strict=True))
    dtype, weights = kv_cache_dtype(model, flags), weights_dtype(model, flags)
    specs = []
    for layer in layers:
        if isinstance(layer, StateLayer):
            state_block = block.mamba_block_size or attention_block
            page = padded or pages[layer]
            replicated = isinstance(layer.state, ShortConvState) and layer.state.replicated
            specs.append(LayerSpec("mamba", state_block, page, (layer.state,), replicated=replicated))
        elif isinstance(layer, RingLayer):
            capacity = layer.capacity(flags.num_speculative_tokens)
            specs.append(LayerSpec("ring", capacity, capacity * layer.row_bytes, (layer,), cacheable=False))
        else:
            row = layer.bytes_per_row(dtype, weights, flags.tensor_parallel_size)
            specs.append(
                LayerSpec(
                    layer.kind,
                    attention_block,
                    attention_block // layer.tokens_per_state * row,
                    (layer.num_kv_heads, layer.head_size, layer.head_size_v, layer.row_bytes),
                    window=layer.window,
                    latent=layer.is_latent,
                    tokens_per_state=layer.tokens_per_state,
                )
            )
    return specs


def _promoted(spec: LayerSpec, block: BlockChoice) -> LayerSpec:
    """Without the hybrid cache manager, sliding and chunked layers are kept as full attention."""
    if spec.kind in ("sliding_window", "chunked_local"):
        return replace(spec, kind="full", window=None, block_size=block.attention_block_size)
    return spec


def _sized(
    group: GroupedLayers, model: ModelLayers, flags: ServeFlags, block: BlockChoice, rules: SizingRules
) -> SizedGroup:
    recurrent = group.spec.kind == "mamba"
    exports = recurrent and block.mode == "align"
    return SizedGroup(
        KVCacheGroup(
            kind=group.spec.kind,
            block_size=group.spec.block_size,
            window=group.spec.window,
            mode=block.mode if recurrent else None,
            tokens_per_state=group.tokens_per_state,
            cacheable=group.spec.cacheable,
            draft=group.draft and rules.flags_draft_group,
            export_alignment=state_export_alignment(model, flags) if exports else None,
        ),
        group.layers,
    )
