"""Mamba2 beside attention: Nemotron-H, Granite 4 hybrid, Bamba, Falcon-H1, Zamba2.

Sources: `vllm/model_executor/models/nemotron_h.py`, `granitemoehybrid.py`, `bamba.py` (up to 0.22), `falcon_h1.py`,
`zamba2.py`. From 0.32 on every Mamba2 layer can export the state at a position inside a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvtune.analyzers.sizing.families.common import attention_layer, base_layers, listed_kinds, required_kinds
from kvtune.analyzers.sizing.layers import AttentionLayer, Layer, ModelLayers, StateExport, StateLayer
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.states import Mamba2State

EXPORT = StateExport("", 1, since=(0, 32))
NO_CACHE = frozenset({"moe", "mlp", "-", "E", "dense"})
"""Feed-forward layers of lists that name every layer."""


def nemotron_h(config: ModelConfig) -> ModelLayers:
    """The state is float32 unless the config says otherwise."""
    state = StateLayer(
        Mamba2State(
            inner_size=config.integer("mamba_num_heads") * config.integer("mamba_head_dim"),
            num_groups=config.integer("n_groups"),
            num_heads=config.integer("mamba_num_heads"),
            head_size=config.integer("mamba_head_dim"),
            state_size=config.integer("ssm_state_size"),
            conv_kernel=config.integer("conv_kernel"),
        )
    )
    attention = attention_layer(config)
    kinds = listed_kinds(config, "layers_block_type") or _pattern(config)
    by_name: dict[str, Layer] = {"mamba": state, "M": state, "attention": attention, "*": attention}
    layers = [by_name[kind] for kind in kinds if kind not in NO_CACHE]
    return base_layers(
        config,
        "Nemotron-H",
        layers,
        draft=config.integer("num_nextn_predict_layers", default=0, minimum=0),
        ssm_dtype=config.string("mamba_ssm_cache_dtype") or "float32",
        mode_all=True,
        chunk_size=_chunk_size(config),
        state_export=EXPORT,
    )


def granite_hybrid(config: ModelConfig) -> ModelLayers:
    state, attention = StateLayer(_state(config)), attention_layer(config)
    kinds = required_kinds(config, "layer_types")
    layers = [attention if kind in ("attention", "full_attention") else state for kind in kinds]
    return _hybrid(config, "Granite 4 hybrid", layers)


def bamba(config: ModelConfig) -> ModelLayers:
    """Attention stands where the config lists it."""
    state, attention = StateLayer(_state(config)), attention_layer(config)
    places = config.integers("attn_layer_indices")
    if places is None:
        raise config.refusal("attn_layer_indices", "missing", "the places of the attention layers")
    layers = [attention if index in set(places) else state for index in range(config.num_layers)]
    return _hybrid(config, "Bamba", layers)


def falcon_h1(config: ModelConfig) -> ModelLayers:
    """Every layer runs both kinds side by side."""
    inner = config.optional_integer("mamba_d_ssm", minimum=1)
    state, attention = StateLayer(_state(config, inner)), attention_layer(config)
    layers: list[Layer] = [layer for _ in range(config.num_layers) for layer in (attention, state)]
    return _hybrid(config, "Falcon-H1", layers)


def zamba2(config: ModelConfig) -> ModelLayers:
    """`hybrid` layers hold both kinds; their attention reads two hidden states side by side, so its heads are wider."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_size = config.optional_integer("attention_head_dim", minimum=1) or 2 * hidden // heads
    attention = AttentionLayer("full", config.num_kv_heads, head_size, head_size)
    state = StateLayer(
        Mamba2State(
            inner_size=config.integer("mamba_expand") * hidden,
            num_groups=config.integer("mamba_ngroups"),
            num_heads=config.integer("n_mamba_heads"),
            head_size=config.integer("mamba_headdim"),
            state_size=config.integer("mamba_d_state"),
            conv_kernel=config.integer("mamba_d_conv"),
        )
    )
    kinds = required_kinds(config, "layers_block_type")
    # The attention blocks are shared and built before any layer, so they come first in the engine's order.
    layers: list[Layer] = [attention for kind in kinds if kind == "hybrid"]
    layers += [state] * len(kinds)
    return _hybrid(config, "Zamba2", layers)


def _hybrid(config: ModelConfig, family: str, layers: Sequence[Layer]) -> ModelLayers:
    return base_layers(
        config, family, layers, mode_all=True, chunk_size=_chunk_size(config), state_export=EXPORT
    )


def _state(config: ModelConfig, inner: int | None = None) -> Mamba2State:
    inner = inner or config.integer("mamba_expand") * config.integer("hidden_size")
    heads = config.integer("mamba_n_heads")
    head_size = inner // heads if config.get("mamba_d_head") == "auto" else config.integer("mamba_d_head")
    return Mamba2State(
        inner_size=inner,
        num_groups=config.integer("mamba_n_groups"),
        num_heads=heads,
        head_size=head_size,
        state_size=config.integer("mamba_d_state"),
        conv_kernel=config.integer("mamba_d_conv"),
    )


def _chunk_size(config: ModelConfig) -> int:
    return config.integer("mamba_chunk_size", "chunk_size", default=2048)


def _pattern(config: ModelConfig) -> list[str]:
    pattern = config.string("hybrid_override_pattern")
    if pattern is None:
        raise config.refusal("hybrid_override_pattern", "missing", "one letter for each layer: M, *, - or E")
    unknown = set(pattern) - {"M", "*", "-", "E"}
    if unknown:
        raise config.refusal("hybrid_override_pattern", repr(min(unknown)), "the letters M, *, - and E")
    return list(pattern)
