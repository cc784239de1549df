"""Functions of single tokens that both op sets share: activations, gates, rotary positions.

Log decays stay in the state's dtype: their differences are exponentiated.
"""

from __future__ import annotations

import torch
from torch.nn import functional

Tensor = torch.Tensor


def activate(name: str, x: Tensor) -> Tensor:
    """The activation by the name it has in `spec.Activation`."""
    if name == "silu":
        return functional.silu(x)
    if name == "relu2":
        return functional.relu(x).square()
    return functional.gelu(x, approximate="tanh")


def feed_forward_inner(up: Tensor, activation: str, gated: bool) -> Tensor:
    """[T, 2 * inner] as [gate | up] -> [T, inner], or [T, inner] unchanged in shape where there is no gate."""
    if not gated:
        return activate(activation, up)
    gate, value = up.chunk(2, dim=-1)
    return activate(activation, gate) * value


def rotary_table(positions: Tensor, rotary_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin, float32[T, rotary_dim / 2]."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=positions.device) / rotary_dim
    angles = positions.to(torch.float32)[:, None] * theta**-exponents
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the leading elements of each head [T, heads, D], halves paired with each other."""
    half = cos.shape[-1]
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def unit_length(x: Tensor) -> Tensor:
    """x / |x| over the last axis (epsilon 1e-6 inside the root, as the gated delta net's public code has it)."""
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6)
