"""`Weights`: a decoder's tensors by canonical name, made from a seed or handed over by `checkpoint`.

A synthetic tensor depends on the seed and its own name only, so a model with fewer layers has the same layers.
Projections are scaled by their fan-in: activations stay near unit size and logits have a standard deviation near
one. Knows no file.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from kvtune.gpu_probe.engine.spec import (
    Attention,
    Block,
    GatedDeltaNet,
    Mamba2,
    Mlp,
    ModelSpec,
    Moe,
    ShortConv,
)

Fill = Literal["normal", "norm", "decay", "step", "skip", "zero"]
Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a decoder needs: its canonical name, shape, fan-in and how a synthetic one is filled.

    `wide` tensors stay in the state's dtype (they are exponentiated or decide gates). A "norm" may be zero-centred in
    a checkpoint; a "skip" is a factor as it stands, the norms behind recurrent layers among them.
    """

    name: str
    shape: tuple[int, ...]
    fan_in: int = 1
    fill: Fill = "normal"
    wide: bool = False


def tensor_specs(spec: ModelSpec) -> Iterator[TensorSpec]:
    """Every tensor of a decoder, in the order of use. A tied head is the embedding and not listed."""
    hidden = spec.hidden_size
    yield TensorSpec("embedding", (spec.vocab_size, hidden))
    for block in spec.blocks:
        yield TensorSpec(f"{block.name}.norm", (hidden,), fill="norm")
        if block.post_norm:
            yield TensorSpec(f"{block.name}.post_norm", (hidden,), fill="norm")
        yield from _operator_tensors(block, hidden)
    yield TensorSpec("norm", (hidden,), fill="norm")
    if not spec.tied_head:
        yield TensorSpec("head", (spec.vocab_size, hidden), hidden)


def _operator_tensors(block: Block, hidden: int) -> Iterator[TensorSpec]:
    name, operator = block.name, block.operator
    if isinstance(operator, Attention):
        yield TensorSpec(f"{name}.in", (operator.projection_size, hidden), hidden)
        if operator.bias:
            yield TensorSpec(f"{name}.in_bias", (operator.projection_size,), fill="zero")
        if operator.qk_norm:
            yield TensorSpec(f"{name}.query_norm", (operator.head_dim,), fill="norm")
            yield TensorSpec(f"{name}.key_norm", (operator.head_dim,), fill="norm")
        yield TensorSpec(f"{name}.out", (hidden, operator.query_size), operator.query_size)
    elif isinstance(operator, Mamba2 | GatedDeltaNet):
        heads = operator.num_heads if isinstance(operator, Mamba2) else operator.num_value_heads
        gated = operator.inner_size if isinstance(operator, Mamba2) else operator.value_dim
        yield TensorSpec(f"{name}.in", (operator.projection_size, hidden), hidden)
        yield TensorSpec(f"{name}.conv", (operator.conv_size, operator.conv_kernel), operator.conv_kernel)
        yield TensorSpec(f"{name}.log_rate", (heads,), fill="decay", wide=True)
        yield TensorSpec(f"{name}.step_bias", (heads,), fill="step", wide=True)
        yield TensorSpec(f"{name}.gate_norm", (gated,), fill="skip")
        if isinstance(operator, Mamba2):
            yield TensorSpec(f"{name}.conv_bias", (operator.conv_size,), fill="zero")
            yield TensorSpec(f"{name}.skip", (heads,), fill="skip", wide=True)
        yield TensorSpec(f"{name}.out", (hidden, operator.inner_size), operator.inner_size)
    elif isinstance(operator, ShortConv):
        yield TensorSpec(f"{name}.in", (operator.projection_size, hidden), hidden)
        yield TensorSpec(f"{name}.conv", (operator.channels, operator.conv_kernel), operator.conv_kernel)
        yield TensorSpec(f"{name}.out", (hidden, operator.channels), operator.channels)
    elif isinstance(operator, Mlp):
        width = operator.intermediate * (2 if operator.gated else 1)
        yield TensorSpec(f"{name}.in", (width, hidden), hidden)
        yield TensorSpec(f"{name}.out", (hidden, operator.intermediate), operator.intermediate)
    else:
        yield from _moe_tensors(name, operator, hidden)


def _moe_tensors(name: str, operator: Moe, hidden: int) -> Iterator[TensorSpec]:
    double = 2 if operator.gated else 1
    yield TensorSpec(f"{name}.router", (operator.num_experts, hidden), hidden)
    if operator.router == "sigmoid":
        yield TensorSpec(f"{name}.router_bias", (operator.num_experts,), fill="zero", wide=True)
    up = (operator.num_experts, operator.intermediate * double, hidden)
    yield TensorSpec(f"{name}.experts_in", up, hidden)
    yield TensorSpec(
        f"{name}.experts_out", (operator.num_experts, hidden, operator.intermediate), operator.intermediate
    )
    if operator.shared_intermediate:
        shared = operator.shared_intermediate
        yield TensorSpec(f"{name}.shared_in", (shared * double, hidden), hidden)
        yield TensorSpec(f"{name}.shared_out", (hidden, shared), shared)
        if operator.shared_gate:
            yield TensorSpec(f"{name}.shared_gate", (1, hidden), hidden)


def synthetic_weights(
    spec: ModelSpec,
    seed: int,
    dtype: torch.dtype,
    state_dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> dict[str, torch.Tensor]:
    """All tensors, normally distributed (never zeros: hardware is faster on zeros). Norm weights are around one."""
    out = {}
    for tensor in tensor_specs(spec):
        digest = hashlib.sha256(f"{seed}:{tensor.name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        value = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
        value = _filled(tensor, value, generator)
        out[tensor.name] = value.to(device=device, dtype=state_dtype if tensor.wide else dtype)
    return out


def _filled(tensor: TensorSpec, normal: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if tensor.fill == "normal":
        return normal * math.sqrt(1 / tensor.fan_in)
    if tensor.fill in ("norm", "skip"):
        return 1 + 0.1 * normal
    if tensor.fill == "decay":
        # Rates exp(log_rate) between 1 and 16, as the public initialisations have them.
        return torch.rand(tensor.shape, generator=generator) * math.log(16.0)
    if tensor.fill == "step":
        # softplus(step_bias) between 0.001 and 0.1, uniform in the logarithm.
        step = torch.exp(torch.rand(tensor.shape, generator=generator) * math.log(100.0) + math.log(0.001))
        return step + torch.log(-torch.expm1(-step))
    return 0.02 * normal
