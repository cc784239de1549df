"""The model that is run for a user's model: itself, some of its layers at full width, or a small stand-in.

    L0 tiny model               the same kinds of layers in the same order, small: hits, copies, exactness
    L1 full width, few layers   synthetic weights: times of each kind of layer
    L2 real weights             the model itself

A rung says what its figures can prove. Counts of blocks and tokens are the server's own on every rung. Knows specs;
no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from kvtune.gpu_probe.engine.spec import (
    Attention,
    Block,
    GatedDeltaNet,
    Mamba2,
    Mlp,
    ModelSpec,
    Moe,
    Operator,
    ShortConv,
    keep_layers,
)

TINY_WIDTH = 128
TINY_VOCAB = 1024
SMALL_ENOUGH = 256
"""A model of this width or less is run as it is."""


def _bundled() -> ModelSpec:
    delta = GatedDeltaNet(2, 4, 32, 32, 4)
    attention = Attention(4, 2, 32, 32**-0.5, 8, qk_norm=True, output_gate=True)
    mixers: tuple[Operator, ...] = (delta, delta, delta, attention)
    blocks = []
    for layer, mixer in enumerate(mixers):
        blocks.append(Block(f"layers.{layer}.mixer", layer, mixer))
        blocks.append(Block(f"layers.{layer}.feed_forward", layer, Mlp(2 * TINY_WIDTH)))
    return ModelSpec("bundled", TINY_WIDTH, TINY_VOCAB, tuple(blocks))


BUNDLED = _bundled()
"""Three gated delta nets and one attention layer, as Qwen3.5 has them: run where a model's config is not known."""


@dataclass(frozen=True)
class Chosen:
    """A model to run and the rung that its figures are on.

    `folds_ids`: its vocabulary is not the trace's, so ids are taken modulo its size. `whole`: the user's model; None
    where another one is run in its place.
    """

    spec: ModelSpec
    rung: str
    folds_ids: bool = False
    whole: ModelSpec | None = None

    @property
    def covers(self) -> Literal["model", "layers", "stand_in"]:
        """What of the user's model is run."""
        if self.whole is None:
            return "stand_in"
        return "model" if self.spec.num_layers == self.whole.num_layers else "layers"


def choose_model(spec: ModelSpec | None, *, device: str, layers: int | None, has_weights: bool) -> Chosen:
    """What to run for `spec` (None: no config is known).

    Args:
        layers: layers of each kind, at the model's own width.
        has_weights: the model's folder holds its weights.
    """
    if spec is None:
        return Chosen(BUNDLED, "L0 tiny model, the bundled one", folds_ids=True)
    if layers is not None:
        kept = keep_layers(spec, layers)
        return Chosen(
            kept,
            f"L1 full width, {kept.num_layers} of {spec.num_layers} layers, synthetic weights",
            whole=spec,
        )
    if has_weights:
        return Chosen(spec, "L2 real weights", whole=spec)
    if device == "cuda":
        kept = keep_layers(spec, 2)
        return Chosen(
            kept,
            f"L1 full width, {kept.num_layers} of {spec.num_layers} layers, synthetic weights",
            whole=spec,
        )
    if spec.hidden_size <= SMALL_ENOUGH:
        return Chosen(spec, "L0 tiny model, synthetic weights", whole=spec)
    small = shrink(spec)
    return Chosen(
        small, f"L0 tiny model, {small.num_layers} layers in place of {spec.num_layers}", folds_ids=True
    )


def shrink(spec: ModelSpec) -> ModelSpec:
    """Two layers of each kind in the model's order, every size cut down, rules (windows, gates, norms) kept."""
    kept = keep_layers(spec, 2)
    blocks = tuple(replace(block, operator=_small(block.operator)) for block in kept.blocks)
    return replace(kept, blocks=blocks, hidden_size=TINY_WIDTH, vocab_size=TINY_VOCAB)


def _small(operator: Operator) -> Operator:
    if isinstance(operator, Attention):
        share = min(2, operator.num_heads // operator.num_kv_heads)
        rotary = (
            0 if not operator.rotary_dim else max(2, 32 * operator.rotary_dim // operator.head_dim // 2 * 2)
        )
        return replace(
            operator, num_heads=2 * share, num_kv_heads=2, head_dim=32, rotary_dim=rotary, scale=32**-0.5
        )
    if isinstance(operator, Mamba2):
        return Mamba2(4, 32, 32, 1, operator.conv_kernel)
    if isinstance(operator, GatedDeltaNet):
        share = min(2, operator.num_value_heads // operator.num_key_heads)
        return GatedDeltaNet(4 // share, 4, 32, 32, operator.conv_kernel)
    if isinstance(operator, ShortConv):
        return ShortConv(TINY_WIDTH, operator.conv_kernel)
    if isinstance(operator, Moe):
        return replace(
            operator,
            num_experts=min(8, operator.num_experts),
            top_k=min(2, operator.top_k),
            intermediate=64,
            shared_intermediate=64 if operator.shared_intermediate else 0,
        )
    return replace(operator, intermediate=2 * TINY_WIDTH)
