"""Jamba (Mamba1), LFM2 (short convolution) and MiniMax-Text-01 (lightning attention).

Sources: `vllm/model_executor/models/jamba.py`, `lfm2.py`, `lfm2_moe.py`, `minimax_text_01.py` (up to 0.22).
"""

from __future__ import annotations

from kvtune.analyzers.sizing.families.common import (
    FULL_ATTENTION_NAMES,
    attention_layer,
    base_layers,
    listed_kinds,
)
from kvtune.analyzers.sizing.layers import ModelLayers, StateLayer
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.states import LinearAttentionState, Mamba1State, ShortConvState


def jamba(config: ModelConfig) -> ModelLayers:
    """Attention every `attn_layer_period` layers from `attn_layer_offset` on."""
    period = config.integer("attn_layer_period")
    offset = config.integer("attn_layer_offset", minimum=0)
    state = StateLayer(
        Mamba1State(
            inner_size=config.integer("mamba_expand") * config.integer("hidden_size"),
            state_size=config.integer("mamba_d_state"),
            conv_kernel=config.integer("mamba_d_conv"),
        )
    )
    attention = attention_layer(config)
    layers = [attention if index % period == offset else state for index in range(config.num_layers)]
    return base_layers(config, "Jamba", layers, mode_all=True)


def lfm2(config: ModelConfig) -> ModelLayers:
    """The convolution's window is so small that the block stays the attention backend's own."""
    width = config.integer("conv_dim", default=config.integer("hidden_size"))
    state = StateLayer(ShortConvState(width=width, window=config.integer("conv_L_cache") - 1))
    attention = attention_layer(config)
    kinds = listed_kinds(config, "layer_types")
    if kinds is None:
        places = config.integers("full_attn_idxs")
        if places is None:
            raise config.refusal("layer_types", "missing", "one name for each layer, or full_attn_idxs")
        kinds = ["full_attention" if index in set(places) else "conv" for index in range(config.num_layers)]
    return base_layers(
        config, "LFM2", [attention if kind in FULL_ATTENTION_NAMES else state for kind in kinds]
    )


def minimax_text(config: ModelConfig) -> ModelLayers:
    """`attn_type_list` has a 1 for every layer with softmax attention."""
    kinds = config.integers("attn_type_list")
    if kinds is None or len(kinds) != config.num_layers:
        raise config.refusal(
            "attn_type_list", "missing" if kinds is None else f"{len(kinds)} entries", "one 0 or 1 a layer"
        )
    state = StateLayer(LinearAttentionState(config.integer("num_attention_heads"), config.head_size))
    attention = attention_layer(config)
    return base_layers(config, "MiniMax-Text-01", [attention if kind == 1 else state for kind in kinds])
