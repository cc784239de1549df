"""Models without recurrent layers: plain attention, sliding windows, chunked local attention, latent attention.

They have no hits inside a block, whatever the unit: what is worth knowing is their groups and blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvtune.analyzers.sizing.families.common import (
    attention_layer,
    base_layers,
    latent_attention_layer,
    listed_kinds,
    required_kinds,
)
from kvtune.analyzers.sizing.layers import AttentionLayer, ModelLayers
from kvtune.analyzers.sizing.model_config import ModelConfig

SLIDING_NAMES = frozenset({"sliding_attention", "sliding_window"})


def plain(config: ModelConfig) -> ModelLayers:
    """Attention in every layer; a window where the config sets one and does not switch it off."""
    full = attention_layer(config)
    window = config.optional_integer("sliding_window", minimum=1)
    kinds = listed_kinds(config, "layer_types")
    if kinds is None:
        slides = window is not None and config.get("use_sliding_window") is not False
        first = (
            config.integer("max_window_layers", default=0, minimum=0)
            if config.get("use_sliding_window")
            else 0
        )
        names = [
            "sliding_attention" if slides and i >= first else "full_attention"
            for i in range(config.num_layers)
        ]
        return base_layers(config, config.model_type, _windowed(config, full, names))
    return base_layers(config, config.model_type, _windowed(config, full, kinds))


def gpt_oss(config: ModelConfig) -> ModelLayers:
    """Sliding and full in turn, unless `layer_types` says otherwise."""
    kinds = listed_kinds(config, "layer_types") or [
        "full_attention" if index % 2 else "sliding_attention" for index in range(config.num_layers)
    ]
    return base_layers(config, "gpt-oss", _windowed(config, attention_layer(config), kinds))


def gemma(config: ModelConfig) -> ModelLayers:
    """Gemma 2, 3 and 3n: every n-th layer is full. The last layers of 3n keep no KV of their own."""
    step = config.integer("sliding_window_pattern", default=2 if config.model_type == "gemma2" else 6)
    kinds = listed_kinds(config, "layer_types") or [
        "sliding_attention" if (index + 1) % step else "full_attention" for index in range(config.num_layers)
    ]
    layers = _windowed(config, attention_layer(config), kinds)
    return base_layers(config, config.model_type, _without_shared(config, layers))


def gemma4(config: ModelConfig) -> ModelLayers:
    """Full attention has its own head size and KV heads; the last layers may keep no KV of their own."""
    local = attention_layer(config)
    head_size = config.integer("global_head_dim", default=local.head_size)
    heads = config.integer("num_global_key_value_heads", default=local.num_kv_heads)
    full = AttentionLayer("full", heads, head_size, head_size)
    window = config.integer("sliding_window")
    sliding = replace(local, kind="sliding_window", window=window)
    layers = [sliding if kind in SLIDING_NAMES else full for kind in required_kinds(config, "layer_types")]
    return base_layers(config, "Gemma 4", _without_shared(config, layers))


def llama4(config: ModelConfig) -> ModelLayers:
    """Layers with rotary positions attend within chunks; the others (0 in `no_rope_layers`) to everything."""
    full = attention_layer(config)
    chunked = replace(full, kind="chunked_local", window=config.integer("attention_chunk_size"))
    rotary = config.integers("no_rope_layers") or [
        int((index + 1) % 4 != 0) for index in range(config.num_layers)
    ]
    if len(rotary) != config.num_layers:
        raise config.refusal(
            "no_rope_layers", f"{len(rotary)} entries", f"one for each of {config.num_layers} layers"
        )
    return base_layers(config, "Llama 4", [chunked if flag else full for flag in rotary])


def latent(config: ModelConfig) -> ModelLayers:
    """DeepSeek V2 and V3 and what is built like them; with `index_topk`, an indexer's rows join the same group."""
    attention = latent_attention_layer(config)
    layers: list[AttentionLayer] = []
    for _ in range(config.num_layers):
        if config.get("index_topk") is not None:
            head_size = config.integer("index_head_dim")
            layers.append(AttentionLayer("full", 1, head_size, 0, row_bytes=head_size + 4))
        layers.append(attention)
    draft = config.integer("num_nextn_predict_layers", default=1, minimum=0)
    return base_layers(config, "latent attention", layers, draft=draft)


def _windowed(config: ModelConfig, full: AttentionLayer, kinds: Sequence[str]) -> list[AttentionLayer]:
    if SLIDING_NAMES.isdisjoint(kinds):
        return [full] * len(kinds)
    sliding = replace(full, kind="sliding_window", window=config.integer("sliding_window"))
    return [sliding if kind in SLIDING_NAMES else full for kind in kinds]


def _without_shared(config: ModelConfig, layers: list[AttentionLayer]) -> list[AttentionLayer]:
    shared = config.integer("num_kv_shared_layers", default=0, minimum=0)
    return layers[: len(layers) - shared] if shared else layers
