"""`ModelSpec`: a decoder as a list of residual blocks, each with one operator and its sizes.

Knows shapes and which KV cache group kind each operator needs; neither tensors nor config files. Sizes are
counts of elements unless the name says otherwise. No torch here, so that estimates cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Activation = Literal["silu", "relu2", "gelu_tanh"]
Router = Literal["softmax_then_topk", "topk_then_softmax", "sigmoid"]


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention. `window`: a token sees this many tokens, itself included; None sees all.

    `rotary_dim` leading elements of each head are rotated (0: no positions). `output_gate`: the query
    projection also yields a sigmoid gate on the output (Qwen3-Next). `scale` multiplies the scores.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rotary_dim: int
    rope_theta: float = 10000.0
    window: int | None = None
    qk_norm: bool = False
    output_gate: bool = False
    bias: bool = False

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def projection_size(self) -> int:
        """Rows of the fused projection [query | key | value | gate]."""
        return self.query_size * (2 if self.output_gate else 1) + 2 * self.kv_size


@dataclass(frozen=True)
class Mamba2:
    """State space duality (Dao and Gu, 2024): a scalar decay per head, B and C shared within groups of heads."""

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    conv_kernel: int

    @property
    def inner_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def conv_size(self) -> int:
        """Channels of the convolution [x | B | C]."""
        return self.inner_size + 2 * self.num_groups * self.state_size

    @property
    def projection_size(self) -> int:
        """Rows of the fused projection [x, B, C | z | dt]."""
        return self.conv_size + self.inner_size + self.num_heads

    @property
    def gate_size(self) -> int:
        """Per-token scan inputs that do not pass the convolution: dt."""
        return self.num_heads

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return (self.num_heads, self.head_dim, self.state_size)


@dataclass(frozen=True)
class GatedDeltaNet:
    """The gated delta rule (Yang et al., 2024): key heads are shared by `num_value_heads / num_key_heads`."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int

    @property
    def key_size(self) -> int:
        return self.num_key_heads * self.key_dim

    @property
    def inner_size(self) -> int:
        return self.num_value_heads * self.value_dim

    @property
    def conv_size(self) -> int:
        """Channels of the convolution [query | key | value]."""
        return 2 * self.key_size + self.inner_size

    @property
    def projection_size(self) -> int:
        """Rows of the fused projection [query, key, value | z | b | a]."""
        return self.conv_size + self.inner_size + 2 * self.num_value_heads

    @property
    def gate_size(self) -> int:
        """Per-token scan inputs that do not pass the convolution: b and a."""
        return 2 * self.num_value_heads

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return (self.num_value_heads, self.key_dim, self.value_dim)


@dataclass(frozen=True)
class ShortConv:
    """A gated causal convolution (LFM2): its last inputs are the whole state."""

    channels: int
    conv_kernel: int

    @property
    def conv_size(self) -> int:
        return self.channels

    @property
    def projection_size(self) -> int:
        """Rows of the fused projection [B | C | x]."""
        return 3 * self.channels

    @property
    def state_shape(self) -> None:
        return None


@dataclass(frozen=True)
class Mlp:
    """A feed-forward block; `gated`: act(gate) * up."""

    intermediate: int
    activation: Activation = "silu"
    gated: bool = True


@dataclass(frozen=True)
class Moe:
    """Mixture of experts: `top_k` of `num_experts`, and a shared expert that sees every token (0: none)."""

    num_experts: int
    top_k: int
    intermediate: int
    shared_intermediate: int = 0
    shared_gate: bool = False
    router: Router = "softmax_then_topk"
    normalize: bool = True
    routed_scale: float = 1.0
    activation: Activation = "silu"
    gated: bool = True


Recurrent = Mamba2 | GatedDeltaNet | ShortConv
Operator = Attention | Mamba2 | GatedDeltaNet | ShortConv | Mlp | Moe


@dataclass(frozen=True)
class Block:
    """`x + residual * post_norm(operator(norm(x)))`. `name` is the layer's in the whole model: seeds hang on it."""

    name: str
    layer: int
    operator: Operator
    post_norm: bool = False


@dataclass(frozen=True)
class ModelSpec:
    """A decoder: embedding, blocks, final norm, head.

    Attributes:
        unfaithful: what of the config has no effect here; harmless for synthetic weights, refused for real ones.
        zero_centred_norm: norms scale by 1 + weight.
    """

    family: str
    hidden_size: int
    vocab_size: int
    blocks: tuple[Block, ...]
    norm_eps: float = 1e-6
    zero_centred_norm: bool = False
    tied_head: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    unfaithful: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        return len({block.layer for block in self.blocks})

    def active_parameters(self) -> int:
        """Weights of the products that one token takes part in, the head included: FLOPs are twice that."""
        per_block = sum(_active_parameters(block.operator, self.hidden_size) for block in self.blocks)
        return per_block + self.vocab_size * self.hidden_size


def mixer_kind(operator: Operator) -> str | None:
    """The kind of token mixing, None for blocks that see one token at a time."""
    if isinstance(operator, Attention):
        return "attention" if operator.window is None else "sliding_window"
    if isinstance(operator, Mamba2):
        return "mamba2"
    if isinstance(operator, GatedDeltaNet):
        return "gated_delta_net"
    if isinstance(operator, ShortConv):
        return "short_conv"
    return None


def block_kind(operator: Operator) -> str:
    """A name for every operator, for tables and messages."""
    return mixer_kind(operator) or ("moe" if isinstance(operator, Moe) else "mlp")


def _active_parameters(operator: Operator, hidden: int) -> int:
    if isinstance(operator, Mlp):
        return hidden * operator.intermediate * (3 if operator.gated else 2)
    if isinstance(operator, Moe):
        width = operator.top_k * operator.intermediate + operator.shared_intermediate
        return hidden * (operator.num_experts + width * (3 if operator.gated else 2))
    inner = {"attention": "query_size", "sliding_window": "query_size", "short_conv": "channels"}
    output = getattr(operator, inner.get(mixer_kind(operator) or "", "inner_size"))
    return hidden * (operator.projection_size + int(output))


def keep_layers(spec: ModelSpec, layers_per_kind: int) -> ModelSpec:
    """The first `layers_per_kind` layers of each kind, in the model's order and under their own names.

    A layer's kind is that of its mixer, or of its feed-forward block where it has no mixer (Nemotron-H).
    """
    kinds: dict[int, str] = {}
    for block in spec.blocks:
        kind = mixer_kind(block.operator)
        if kind is not None or block.layer not in kinds:
            kinds[block.layer] = block_kind(block.operator)
    kept: set[int] = set()
    counts: dict[str, int] = {}
    for layer, kind in sorted(kinds.items()):
        if counts.get(kind, 0) < layers_per_kind:
            counts[kind] = counts.get(kind, 0) + 1
            kept.add(layer)
    return replace(spec, blocks=tuple(block for block in spec.blocks if block.layer in kept))
