"""Qwen3-Next, Qwen3.5 to 3.8 and their mixture and text-only variants: gated delta net and full attention.

Sources: `vllm/model_executor/models/qwen3_next.py`, `qwen3_5.py`, `vllm/models/qwen4_exp`, 0.19 to 0.33.
"""

from __future__ import annotations

from kvtune.analyzers.sizing.families.common import attention_layer, base_layers, interval_kinds
from kvtune.analyzers.sizing.layers import (
    AttentionLayer,
    Layer,
    ModelLayers,
    RingLayer,
    StateExport,
    StateLayer,
)
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.states import GatedDeltaNetState, ShortConvState

FLASHINFER_PREFILL = StateExport("flashinfer", 64, since=(0, 33), rounds_block=True)
"""The FlashInfer prefill kernel (Hopper; Blackwell with CUDA 13 and key heads of 128) emits states in steps of 64."""


def qwen3_next(config: ModelConfig) -> ModelLayers:
    """The state follows the weights' dtype: nothing in this family's config says otherwise."""
    return base_layers(config, "Qwen3-Next", _layers(config), draft=1, state_export=FLASHINFER_PREFILL)


def qwen3_5(config: ModelConfig) -> ModelLayers:
    """Adds the state's dtype, which the text config names (`mamba_ssm_dtype`)."""
    return base_layers(
        config,
        "Qwen3.5",
        _layers(config),
        draft=config.integer("mtp_num_hidden_layers", default=1, minimum=0),
        ssm_dtype=config.string("mamba_ssm_dtype"),
        state_export=FLASHINFER_PREFILL,
    )


def qwen4_exp(config: ModelConfig) -> ModelLayers:
    """Adds an indexer beside every attention layer and n-gram embeddings with a short convolution of their own."""
    ratio = config.integer("indexer_compress_ratio")
    key_size = config.integer("indexer_head_dim")
    ring = RingLayer(ratio, power_of_two=False, row_bytes=2 * key_size)
    compressed = AttentionLayer("full", 1, key_size, 0, tokens_per_state=ratio, row_bytes=2 * key_size)
    embedding_layers = set(config.integers("ple_layer_ids") or ())
    embedding = StateLayer(_embedding_convolution(config)) if embedding_layers else None
    layers: list[Layer] = []
    for index, layer in enumerate(_layers(config)):
        if embedding is not None and index in embedding_layers:
            layers.append(embedding)
        if isinstance(layer, AttentionLayer):
            layers += [ring, compressed]
        layers.append(layer)
    return base_layers(
        config,
        "Qwen3.8-Flash-Next",
        tuple(layers),
        draft=config.integer("mtp_num_hidden_layers", default=1, minimum=0),
        ssm_dtype=config.string("mamba_ssm_dtype"),
        packed=True,
        state_export=FLASHINFER_PREFILL,
    )


def _layers(config: ModelConfig) -> tuple[Layer, ...]:
    state = StateLayer(
        GatedDeltaNetState(
            num_key_heads=config.integer("linear_num_key_heads"),
            num_value_heads=config.integer("linear_num_value_heads"),
            key_head_size=config.integer("linear_key_head_dim"),
            value_head_size=config.integer("linear_value_head_dim"),
            conv_kernel=config.integer("linear_conv_kernel_dim"),
        )
    )
    attention = attention_layer(config)
    return tuple(
        attention if kind == "full_attention" else state
        for kind in interval_kinds(config, "full_attention_interval", default=4)
    )


def _embedding_convolution(config: ModelConfig) -> ShortConvState:
    """Held whole on every rank, dilated by the n-gram size, and as wide as all residual streams."""
    return ShortConvState(
        width=config.integer("hidden_size") * config.integer("hc_count"),
        window=(config.integer("ple_conv_kernel_size") - 1) * config.integer("ngram_size"),
        replicated=True,
        lengthened=True,
    )
