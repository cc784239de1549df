"""`ModelWork`: what a model reads and computes for a token, counted from its config.json.

    mixers, dense feed-forward   read whole in each step
    experts                      read as far as tokens choose them
    attention                    pairs of a token and a position it attends to; keys and values of earlier positions
    recurrent states             read and written once a request and step

Counts are of the whole model; tensor parallelism shares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvtune.analyzers.sizing.families import model_layers
from kvtune.analyzers.sizing.layers import AttentionLayer, ModelLayers, StateDtypes, StateLayer
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.step_times.feed_forward import Experts, FeedForward
from kvtune.analyzers.step_times.projections import (
    Projection,
    attention_projections,
    latent_expansion,
    latent_query_size,
    state_projections,
)
from kvtune.analyzers.step_times.weight_format import WeightFormat, weight_formats
from kvtune.tokenization.errors import UnusableInputError

_SELECTED = ("index_topk", "indexer_budget")
"""Positions that sparse attention selects for each token."""


@dataclass(frozen=True)
class AttentionWork:
    """Attention layers that are alike.

    Attributes:
        layers: how many.
        pair_flops: of one layer, for one token and one position.
        position_bytes: of keys and values of one position in one layer.
        expanded_weights: weights that one layer applies to every earlier position of a prefill (latent attention).
        reach: most positions a token attends to; None without a window.
    """

    layers: int
    pair_flops: int
    position_bytes: float
    expanded_weights: int = 0
    reach: int | None = None


@dataclass(frozen=True)
class ModelWork:
    """One model.

    Attributes:
        hidden_size: elements of a token between layers.
        parts: mixers and feed-forward layers; each launches kernels and, on several GPUs, an all-reduce.
        dense_weights: that every token passes: mixers, dense feed-forward, shared experts, routers.
        activation_elements: that the matrices and experts read and write for one token.
        head_weights: of the output projection, which one token a request passes.
        embedding_weights: stored beside it, and read a row a token; 0 where both are the same matrix.
        repeated_weights: dense ones that several layers share (Zamba2): read by each, stored once.
        experts: None in a dense model.
        attention: by kind.
        state_bytes: of all recurrent states of a request.
        head_bytes: of a weight of the output projection and the embedding, which are not quantized.
        dense_format: of dense weights. expert_format: of experts' weights.
    """

    hidden_size: int
    parts: int
    dense_weights: int
    activation_elements: int
    head_weights: int
    embedding_weights: int
    repeated_weights: int
    experts: Experts | None
    attention: tuple[AttentionWork, ...]
    state_bytes: float
    head_bytes: float
    dense_format: WeightFormat
    expert_format: WeightFormat

    @property
    def is_quantized(self) -> bool:
        """Whether some weights take fewer bytes than the model's dtype."""
        return min(self.dense_format.bytes, self.expert_format.bytes) < self.head_bytes

    @cached_property
    def expert_weights(self) -> int:
        """Weights of all experts of all layers."""
        experts = self.experts
        return experts.layers * experts.number * experts.expert_weights if experts is not None else 0

    @cached_property
    def active_weights(self) -> int:
        """Weights that one token passes, the output projection included."""
        experts = self.experts
        chosen = experts.layers * experts.chosen * experts.expert_weights if experts is not None else 0
        return self.dense_weights + chosen + self.head_weights

    @cached_property
    def total_weights(self) -> int:
        """Weights of the language model, stored."""
        dense = self.dense_weights - self.repeated_weights
        return dense + self.expert_weights + self.head_weights + self.embedding_weights

    @cached_property
    def stored_bytes(self) -> float:
        """Memory of the weights of the language model."""
        return (
            (self.dense_weights - self.repeated_weights) * self.dense_format.bytes
            + self.expert_weights * self.expert_format.bytes
            + (self.head_weights + self.embedding_weights) * self.head_bytes
        )

    @classmethod
    def of(cls, config: ModelConfig, kv_cache_dtype: str = "auto") -> ModelWork:
        """From a config.

        Raises:
            UnusableInputError: an unknown family or quantization method, or a size is missing.
        """
        try:
            return cls._of(config, kv_cache_dtype)
        except UnusableInputError as error:
            raise UnusableInputError(
                "what a step computes cannot be counted from this config",
                where=error.where,
                field=error.field,
                found=error.found,
                wanted=error.wanted,
                way_out="give the hub's config.json as it is",
            ) from error

    @classmethod
    def _of(cls, config: ModelConfig, kv_cache_dtype: str) -> ModelWork:
        model, feed_forward = model_layers(config), FeedForward.of(config)
        hidden, formats = config.integer("hidden_size"), weight_formats(config)
        mixers = _mixers(config, model)
        matrices = [projection for mixer in mixers for projection in mixer] + list(feed_forward.dense)
        head = hidden * config.integer("vocab_size")
        tied = config.get("tie_word_embeddings") is True
        return cls(
            hidden_size=hidden,
            parts=len(mixers) + feed_forward.layers,
            dense_weights=sum(projection.weights for projection in matrices),
            activation_elements=_activations(matrices, feed_forward.experts),
            head_weights=head,
            embedding_weights=(0 if tied else head) + _layer_embeddings(config),
            repeated_weights=_repeated_weights(config, model, feed_forward),
            experts=feed_forward.experts,
            attention=_attention(config, model, kv_cache_dtype),
            state_bytes=_state_bytes(model),
            head_bytes=formats.plain.bytes,
            dense_format=formats.dense,
            expert_format=formats.experts,
        )


def _mixers(config: ModelConfig, model: ModelLayers) -> list[tuple[Projection, ...]]:
    """The matrices of each mixer. Side caches of an indexer and rings are no mixers."""
    mixers = []
    for layer in model.layers:
        if isinstance(layer, AttentionLayer) and layer.row_bytes is None:
            mixers.append(attention_projections(config, layer))
        elif isinstance(layer, StateLayer):
            projections = state_projections(config, layer)
            if projections:
                mixers.append(projections)
    # Layers that use the keys and values of an earlier one have queries and an output of their own.
    shared = config.integer("num_kv_shared_layers", default=0, minimum=0)
    main = model.main_attention
    if shared and main is not None:
        queries, _, output = attention_projections(config, main)
        mixers += [(queries, output)] * shared
    return mixers


def _layer_embeddings(config: ModelConfig) -> int:
    """Gemma 3n and 4 embed each token once more for every layer."""
    width = config.integer("hidden_size_per_layer_input", default=0, minimum=0)
    vocabulary = config.integer("vocab_size_per_layer_input", "vocab_size")
    return config.num_layers * width * vocabulary


def _repeated_weights(config: ModelConfig, model: ModelLayers, feed_forward: FeedForward) -> int:
    """Zamba2's attention and feed-forward blocks take turns; its Mamba layers are all their own."""
    blocks, uses = config.integer("num_mem_blocks", default=0, minimum=0), feed_forward.layers
    if not blocks or blocks >= uses or model.main_attention is None:
        return 0
    attention = sum(each.weights for each in attention_projections(config, model.main_attention))
    own = sum(each.weights for each in feed_forward.dense) // uses
    return (uses - blocks) * (attention + own)


def _activations(matrices: list[Projection], experts: Experts | None) -> int:
    elements = sum(projection.inputs + projection.outputs for projection in matrices)
    if experts is not None:
        each = sum(projection.inputs + projection.outputs for projection in experts.projections)
        elements += experts.layers * experts.chosen * each
    return elements


def _attention(config: ModelConfig, model: ModelLayers, kv_cache_dtype: str) -> tuple[AttentionWork, ...]:
    selected = config.optional_integer(*_SELECTED, minimum=1)
    heads = config.integer("num_attention_heads")
    counts: dict[AttentionLayer, int] = {}
    for layer in model.layers:
        if isinstance(layer, AttentionLayer) and layer.row_bytes is None:
            counts[layer] = counts.get(layer, 0) + 1
    works = []
    for layer, count in counts.items():
        if layer.is_latent:
            width = latent_query_size(config) + config.integer("v_head_dim")
            expanded = latent_expansion(config).weights
        else:
            width, expanded = layer.head_size + layer.head_size_v, 0
        works.append(
            AttentionWork(
                layers=count,
                pair_flops=2 * heads * width,
                position_bytes=layer.bytes_per_row(kv_cache_dtype, model.dtype, 1) / layer.tokens_per_state,
                expanded_weights=expanded,
                reach=layer.window if layer.window is not None else selected,
            )
        )
    return tuple(works)


def _state_bytes(model: ModelLayers) -> float:
    dtypes = StateDtypes.of("auto", "auto", model.dtype, model.ssm_dtype)
    return float(sum(layer.page_bytes(dtypes, 1, 0) for layer in model.state_layers))
