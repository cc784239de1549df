"""`ModelWork`: what a model computes and reads for a token, from its config.json. Counted in weights and elements.

    dense weights (read whole each step) · experts (read as far as tokens choose them) · attention · recurrent states

Feed-forward and expert sizes are read by their usual field names; norms, biases, routers and embeddings are left out:
together under 2 % of the weights that a step reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtune.analyzers.sizing.families import model_layers
from kvtune.analyzers.sizing.layers import AttentionLayer, StateLayer
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.states import (
    GatedDeltaNetState,
    KimiDeltaState,
    Mamba1State,
    Mamba2State,
    ShortConvState,
)

_BYTES_BY_METHOD = {
    "fp8": 1.0,
    "modelopt": 1.0,
    "nvfp4": 0.56,
    "modelopt_fp4": 0.56,
    "awq": 0.56,
    "gptq": 0.56,
    "mxfp4": 0.53,
    "compressed-tensors": 1.0,
}
"""Bytes a weight, scales included, by `quantization_config.quant_method`; bf16 otherwise."""


@dataclass(frozen=True)
class ModelWork:
    """One model.

    Attributes:
        layers: of any kind, each of which launches kernels. hidden_size: elements of a token between layers.
        dense_weights: weights that every token uses, read whole in each step.
        head_weights: of the output projection, used for one token a request. tied: it is the input embedding too.
        expert_layers: layers with experts. experts, experts_per_token: in each of them.
        expert_weights: of one expert.
        attention: of each attention layer: query heads times head size, elements of K and V a token, window (0: none).
        state_elements: of all recurrent states of a request.
        weight_bytes: of one weight.
    """

    layers: int
    hidden_size: int
    dense_weights: float
    head_weights: float
    tied: bool
    expert_layers: int
    experts: int
    experts_per_token: int
    expert_weights: float
    attention: tuple[tuple[int, int, int], ...]
    state_elements: float
    weight_bytes: float

    @property
    def all_weights(self) -> float:
        """Every weight that the GPUs must hold."""
        embeddings = 0.0 if self.tied else self.head_weights
        experts = self.expert_layers * self.experts * self.expert_weights
        return self.dense_weights + self.head_weights + embeddings + experts

    @classmethod
    def of(cls, config: ModelConfig) -> ModelWork:
        """From a config.

        Raises:
            UnusableInputError: an unknown family, or a field is missing.
        """
        model = model_layers(config)
        hidden = config.integer("hidden_size")
        mixers = sum(_mixer_weights(config, layer, hidden) for layer in model.layers)
        feed_forward = _FeedForward.of(config, hidden)
        states = sum(
            sum((elements.conv, elements.matrix))
            for layer in model.state_layers
            for elements in (layer.state.elements(1, 0),)
        )
        return cls(
            layers=config.num_layers,
            hidden_size=hidden,
            dense_weights=mixers + feed_forward.dense_weights,
            head_weights=float(hidden * config.integer("vocab_size", default=131_072)),
            tied=config.outer.get("tie_word_embeddings") is True
            or config.text.get("tie_word_embeddings") is True,
            expert_layers=feed_forward.expert_layers,
            experts=feed_forward.experts,
            experts_per_token=feed_forward.experts_per_token,
            expert_weights=feed_forward.expert_weights,
            attention=tuple(_attention(config, layer) for layer in model.layers if _attends(layer)),
            state_elements=float(states),
            weight_bytes=_weight_bytes(config),
        )


def _attends(layer: object) -> bool:
    return isinstance(layer, AttentionLayer) and layer.row_bytes is None


def _attention(config: ModelConfig, layer: object) -> tuple[int, int, int]:
    assert isinstance(layer, AttentionLayer)
    heads = config.integer("num_attention_heads")
    if layer.is_latent:
        return heads * layer.head_size, layer.head_size, layer.window or 0
    return (
        heads * layer.head_size,
        layer.num_kv_heads * (layer.head_size + layer.head_size_v),
        layer.window or 0,
    )


def _mixer_weights(config: ModelConfig, layer: object, hidden: int) -> float:
    """Weights of an attention or state layer's projections."""
    if isinstance(layer, AttentionLayer):
        if layer.row_bytes is not None:
            return 0.0
        heads = config.integer("num_attention_heads")
        if layer.is_latent:
            size = config.integer("qk_nope_head_dim", default=128) + config.integer(
                "qk_rope_head_dim", default=0, minimum=0
            )
            value = config.integer("v_head_dim", default=128)
            rank = config.optional_integer("q_lora_rank") or 0
            queries = hidden * rank + rank * heads * size if rank else hidden * heads * size
            return (
                queries
                + hidden * layer.head_size
                + layer.head_size * heads * (size + value)
                + heads * value * hidden
            )
        gate = 2 if config.get("attn_output_gate") or "qwen3_next" in config.model_type else 1
        wide = heads * layer.head_size
        return (
            hidden * (gate * wide + layer.num_kv_heads * (layer.head_size + layer.head_size_v))
            + wide * hidden
        )
    if not isinstance(layer, StateLayer):
        return 0.0
    state = layer.state
    if isinstance(state, GatedDeltaNetState):
        keys, values = (
            state.num_key_heads * state.key_head_size,
            state.num_value_heads * state.value_head_size,
        )
        return hidden * (2 * keys + 2 * values + 2 * state.num_value_heads) + values * hidden
    if isinstance(state, KimiDeltaState):
        wide = state.num_heads * state.head_size
        return 4 * hidden * wide + 2 * state.head_size * (hidden + wide)
    if isinstance(state, Mamba2State):
        return hidden * (2 * state.inner_size + 2 * state.num_groups * state.state_size + state.num_heads) + (
            state.inner_size * hidden
        )
    if isinstance(state, Mamba1State):
        return 3 * hidden * state.inner_size + 2 * state.inner_size * (hidden // 16 + state.state_size)
    if isinstance(state, ShortConvState):
        return 4 * hidden * hidden
    return 4 * hidden * hidden


@dataclass(frozen=True)
class _FeedForward:
    dense_weights: float
    expert_layers: int
    experts: int
    experts_per_token: int
    expert_weights: float

    @classmethod
    def of(cls, config: ModelConfig, hidden: int) -> _FeedForward:
        gated = 2 if "nemotron" in config.model_type else 3
        experts = config.integer("num_experts", "n_routed_experts", "num_local_experts", default=0, minimum=0)
        layers, pattern = config.num_layers, config.get("hybrid_override_pattern")
        if isinstance(pattern, str):
            dense_layers, expert_layers = pattern.count("-"), pattern.count("E")
        elif experts:
            first = config.integer("first_k_dense_replace", "num_dense_layers", default=0, minimum=0)
            period = config.integer(
                "expert_layer_period", "interleave_moe_layer_step", "decoder_sparse_step", default=1
            )
            expert_layers = max(0, layers - first) // period
            dense_layers = layers - expert_layers
        else:
            dense_layers, expert_layers = layers, 0
        width = config.optional_integer("intermediate_size", "ffn_hidden_size") or 0
        expert_width = config.optional_integer("moe_intermediate_size") or width
        shared = config.optional_integer(
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
            "moe_shared_expert_intermediate_size",
        )
        if shared is None:
            number = config.optional_integer("n_shared_experts", "num_shared_experts") or 0
            shared = number * expert_width if experts else 0
        if not (width or (experts and not dense_layers)):
            raise config.refusal("intermediate_size", "missing", "the width of the feed-forward layers")
        return cls(
            dense_weights=float(gated * hidden * (dense_layers * width + expert_layers * shared)),
            expert_layers=expert_layers,
            experts=experts,
            experts_per_token=config.integer(
                "num_experts_per_tok", "num_experts_per_token", "top_k_experts", default=1
            ),
            expert_weights=float(gated * hidden * expert_width),
        )


def _weight_bytes(config: ModelConfig) -> float:
    quantization = config.outer.get("quantization_config") or config.text.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if isinstance(method, str):
        return _BYTES_BY_METHOD.get(method.lower(), 1.0)
    return 4.0 if config.dtype == "float32" else 2.0
