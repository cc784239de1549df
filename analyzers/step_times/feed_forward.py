"""The feed-forward layers of a model: which are dense, which choose experts, and how wide they are.

Field names differ between families; what they mean does not. A size that the config lacks is refused, never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.step_times.projections import Projection

_UNGATED = frozenset({"nemotron", "nemotron_h", "starcoder2"})
"""Families whose feed-forward has no gate: two matrices, where others have three."""
_PARALLEL_DENSE = frozenset({"gemma4", "gemma4_text"})
"""Families with a dense feed-forward beside the experts of every layer."""
_EXPERT_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_EXPERTS_PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_k",
)
_DENSE_WIDTHS = ("intermediate_size", "block_ff_dim", "ffn_hidden_size")


@dataclass(frozen=True)
class Experts:
    """The experts of a model's layers, all alike.

    Attributes:
        layers: that have them. number: in each layer. chosen: by one token.
        projections: of one expert.
    """

    layers: int
    number: int
    chosen: int
    projections: tuple[Projection, ...]

    @property
    def expert_weights(self) -> int:
        """Weights of one expert of one layer."""
        return sum(projection.weights for projection in self.projections)


@dataclass(frozen=True)
class FeedForward:
    """Every feed-forward layer of a model.

    Attributes:
        layers: dense ones and those with experts.
        dense: matrices that every token passes, of all layers: dense layers, shared experts, routers.
        experts: None in a dense model.
    """

    layers: int
    dense: tuple[Projection, ...]
    experts: Experts | None

    @classmethod
    def of(cls, config: ModelConfig) -> FeedForward:
        """From a config.

        Raises:
            UnusableInputError: a size is missing or no count.
        """
        hidden, number = config.integer("hidden_size"), _number_of_experts(config)
        kinds = _kinds(config, number)
        dense_layers, expert_layers = kinds.count("dense"), kinds.count("experts")
        both = expert_layers if config.model_type in _PARALLEL_DENSE else 0
        dense: list[Projection] = []
        if dense_layers + both:
            dense += _matrices(config, hidden, _dense_width(config)) * (dense_layers + both)
        if not expert_layers:
            return cls(len(kinds), tuple(dense), None)
        width = _expert_width(config)
        shared = _shared_width(config, width)
        if shared:
            dense += _matrices(config, hidden, shared) * expert_layers
        dense += (Projection(hidden, number),) * expert_layers
        latent = config.optional_integer("moe_latent_size", "routed_expert_hidden_size", minimum=1)
        if latent is not None:
            dense += (Projection(hidden, latent), Projection(latent, hidden)) * expert_layers
        experts = Experts(
            expert_layers,
            number,
            min(number, config.integer(*_EXPERTS_PER_TOKEN)),
            tuple(_matrices(config, latent or hidden, width)),
        )
        return cls(len(kinds), tuple(dense), experts)


def _number_of_experts(config: ModelConfig) -> int:
    return config.integer(*_EXPERT_COUNTS, default=0, minimum=0)


def _kinds(config: ModelConfig, experts: int) -> list[str]:
    """`dense` or `experts` for each feed-forward layer; layers without one are left out."""
    listed = _listed_kinds(config)
    if listed is not None:
        return listed
    layers = range(config.num_layers)
    if config.model_type == "zamba2":
        names = config.strings("layers_block_type") or []
        return ["dense"] * names.count("hybrid")
    if experts <= 1:
        return ["dense"] * len(layers)
    places = {index for index in layers if _has_experts(config, index)}
    return ["experts" if index in places else "dense" for index in layers]


def _listed_kinds(config: ModelConfig) -> list[str] | None:
    """Where the config names the feed-forward of each layer."""
    names = config.strings("mlp_layer_types")
    if names is not None:
        return ["experts" if name == "sparse" else "dense" for name in names]
    if config.model_type != "nemotron_h":
        return None
    blocks = config.strings("layers_block_type") or list(config.string("hybrid_override_pattern") or "")
    by_name = {"-": "dense", "mlp": "dense", "E": "experts", "moe": "experts"}
    return [by_name[block] for block in blocks if block in by_name]


def _has_experts(config: ModelConfig, index: int) -> bool:
    """Whether a layer of a model with experts has them: by first dense layers, an interval, or a list."""
    first = config.integer(
        "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", default=0, minimum=0
    )
    if index < first or index in (config.integers("mlp_only_layers") or ()):
        return False
    period = config.optional_integer("expert_layer_period", minimum=1)
    if period is not None:
        return index % period == config.integer("expert_layer_offset", default=0, minimum=0)
    step = config.optional_integer("interleave_moe_layer_step", "decoder_sparse_step", minimum=1)
    return step is None or (index + 1) % step == 0


def _matrices(config: ModelConfig, inputs: int, width: int) -> tuple[Projection, ...]:
    up = width if config.model_type in _UNGATED else 2 * width
    return Projection(inputs, up), Projection(width, inputs)


def _dense_width(config: ModelConfig) -> int:
    if config.model_type == "llama4":
        return config.integer("intermediate_size_mlp", "intermediate_size")
    if config.model_type == "granitemoehybrid":
        return config.integer("shared_intermediate_size", "intermediate_size")
    width = config.integer(*_DENSE_WIDTHS)
    if config.model_type == "lfm2" and config.get("block_auto_adjust_ff_dim") is not False:
        multiple = config.integer("block_multiple_of", default=256)
        return -(-(2 * width // 3) // multiple) * multiple
    return width


def _expert_width(config: ModelConfig) -> int:
    """Families without a field for it give the experts' width as `intermediate_size`."""
    return config.integer("moe_intermediate_size", "expert_ffn_hidden_size", *_DENSE_WIDTHS)


def _shared_width(config: ModelConfig, expert_width: int) -> int:
    """Of the experts that every token passes, side by side; 0 without any."""
    if config.model_type == "llama4":
        return expert_width
    width = config.optional_integer(
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
    )
    if width is not None:
        return width
    return expert_width * config.integer("n_shared_experts", "num_shared_experts", default=0, minimum=0)
