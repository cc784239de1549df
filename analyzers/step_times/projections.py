"""The weight matrices of a model's mixers (attention and recurrent layers), by layer kind.

Norms, biases, convolutions and gates of one value a head are left out: under 1% of the weights. Shapes are those of
the engine's model classes (`vllm/model_executor/models`, 0.33).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvtune.analyzers.sizing.layers import AttentionLayer, StateLayer
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.states import (
    GatedDeltaNetState,
    KimiDeltaState,
    LinearAttentionState,
    Mamba1State,
    Mamba2State,
    ShortConvState,
    State,
)

_OUTPUT_GATED = frozenset({"qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen4_exp"})
"""Families whose attention multiplies its output with a gate as wide as the queries."""


class Projection(NamedTuple):
    """One weight matrix.

    Attributes:
        inputs, outputs: elements of a token before and after it.
    """

    inputs: int
    outputs: int

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs


def attention_projections(config: ModelConfig, layer: AttentionLayer) -> tuple[Projection, ...]:
    """Of one layer with dense or latent attention.

    Raises:
        UnusableInputError: the config lacks a size.
    """
    if layer.is_latent:
        return _latent_projections(config, layer)
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    width = heads * layer.head_size
    # Zamba2's shared attention reads two hidden states side by side.
    read = 2 * hidden if config.model_type == "zamba2" else hidden
    keys_values = layer.num_kv_heads * (layer.head_size + layer.head_size_v)
    queries = 2 * width if _has_output_gate(config) else width
    return Projection(read, queries), Projection(read, keys_values), Projection(width, hidden)


def latent_query_size(config: ModelConfig) -> int:
    """Elements of a head's query, and of its key after the latent row is expanded."""
    return config.integer("qk_nope_head_dim") + config.integer("qk_rope_head_dim", default=0, minimum=0)


def _latent_projections(config: ModelConfig, layer: AttentionLayer) -> tuple[Projection, ...]:
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    queries = heads * latent_query_size(config)
    rank = config.optional_integer("q_lora_rank", minimum=1)
    down_up = (
        (Projection(hidden, rank), Projection(rank, queries)) if rank else (Projection(hidden, queries),)
    )
    return (
        *down_up,
        Projection(hidden, layer.head_size),
        latent_expansion(config),
        Projection(heads * config.integer("v_head_dim"), hidden),
    )


def latent_expansion(config: ModelConfig) -> Projection:
    """From a latent row to the keys and values of all heads; a prefill applies it to earlier positions again."""
    per_head = config.integer("qk_nope_head_dim") + config.integer("v_head_dim")
    return Projection(config.integer("kv_lora_rank"), config.integer("num_attention_heads") * per_head)


def state_projections(config: ModelConfig, layer: StateLayer) -> tuple[Projection, ...]:
    """Of one recurrent layer.

    Raises:
        UnusableInputError: the config lacks a size.
    """
    hidden = config.integer("hidden_size")
    return _BY_STATE[type(layer.state)](config, layer.state, hidden)


def _gated_delta_net(_config: ModelConfig, state: State, hidden: int) -> tuple[Projection, ...]:
    assert isinstance(state, GatedDeltaNetState)
    keys = state.num_key_heads * state.key_head_size
    values = state.num_value_heads * state.value_head_size
    return (
        Projection(hidden, 2 * keys + 2 * values),
        Projection(hidden, 2 * state.num_value_heads),
        Projection(values, hidden),
    )


def _kimi_delta(config: ModelConfig, state: State, hidden: int) -> tuple[Projection, ...]:
    """Queries, keys, values, decay and output gate; the last two through a head's width, except in Ling 3."""
    assert isinstance(state, KimiDeltaState)
    width = state.num_heads * state.head_size
    gates = (
        (Projection(hidden, 2 * width),)
        if config.get("no_kda_lora")
        else (Projection(hidden, 2 * state.head_size), *(Projection(state.head_size, width),) * 2)
    )
    return (
        Projection(hidden, 3 * width),
        *gates,
        Projection(hidden, state.num_heads),
        Projection(width, hidden),
    )


def _mamba2(_config: ModelConfig, state: State, hidden: int) -> tuple[Projection, ...]:
    assert isinstance(state, Mamba2State)
    outputs = 2 * state.inner_size + 2 * state.num_groups * state.state_size + state.num_heads
    return Projection(hidden, outputs), Projection(state.inner_size, hidden)


def _mamba1(config: ModelConfig, state: State, hidden: int) -> tuple[Projection, ...]:
    assert isinstance(state, Mamba1State)
    rank = config.integer("mamba_dt_rank", default=-(-hidden // 16))
    return (
        Projection(hidden, 2 * state.inner_size),
        Projection(state.inner_size, rank + 2 * state.state_size),
        Projection(rank, state.inner_size),
        Projection(state.inner_size, hidden),
    )


def _short_conv(_config: ModelConfig, state: State, hidden: int) -> tuple[Projection, ...]:
    """None where the convolution belongs to an embedding (held whole on every rank)."""
    assert isinstance(state, ShortConvState)
    return () if state.replicated else (Projection(hidden, 3 * state.width), Projection(state.width, hidden))


def _linear_attention(_config: ModelConfig, state: State, hidden: int) -> tuple[Projection, ...]:
    """Queries, keys and values, an output gate as wide as one of them, the output."""
    assert isinstance(state, LinearAttentionState)
    width = state.num_heads * state.head_size
    return Projection(hidden, 3 * width), Projection(hidden, width), Projection(width, hidden)


_BY_STATE: dict[type, Callable[[ModelConfig, State, int], tuple[Projection, ...]]] = {
    GatedDeltaNetState: _gated_delta_net,
    KimiDeltaState: _kimi_delta,
    Mamba2State: _mamba2,
    Mamba1State: _mamba1,
    ShortConvState: _short_conv,
    LinearAttentionState: _linear_attention,
}


def _has_output_gate(config: ModelConfig) -> bool:
    given = config.get("attn_output_gate")
    return bool(given) if given is not None else config.model_type.removesuffix("_text") in _OUTPUT_GATED
