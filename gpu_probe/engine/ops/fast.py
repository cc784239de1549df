"""`FastOps`: the operations in torch, batched over a step, on CPU and CUDA; `grid` makes them bitwise repeatable.

No operation waits for a value on the device. Implements `interface.Ops`; `reference` says what each means.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from kvtune.gpu_probe.engine.grid import ExactGrid
from kvtune.gpu_probe.engine.ops import attention, conv, experts, scan
from kvtune.gpu_probe.engine.pools import KVLayer, StateLayer
from kvtune.gpu_probe.engine.spec import Attention, GatedDeltaNet, Mamba2
from kvtune.gpu_probe.engine.step import Step

Tensor = torch.Tensor


class FastOps:
    """`grid` None is the fast path; with a grid, equal tokens give equal bits however they are cut (CPU)."""

    def __init__(self, state_dtype: torch.dtype = torch.float32, grid: ExactGrid | None = None) -> None:
        self.state_dtype = state_dtype
        self.grid = grid

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.grid is None or not self.grid.matmul_tile:
            return functional.linear(x, weight, bias)
        return tiled_linear(x, weight, bias, self.grid.matmul_rows)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, eps)

    def attention(
        self,
        step: Step,
        group: int,
        spec: Attention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: KVLayer,
    ) -> Tensor:
        attention.store(step, group, key, value, cache)
        return attention.attend(step, group, spec, query, cache, self.grid)

    def causal_conv(
        self, step: Step, group: int, x: Tensor, weight: Tensor, bias: Tensor | None, cache: StateLayer
    ) -> Tensor:
        return conv.causal_conv(step, group, x, weight, bias, cache)

    def delta_rule(
        self,
        step: Step,
        group: int,
        spec: GatedDeltaNet,
        qkv: Tensor,
        log_decay: Tensor,
        beta: Tensor,
        cache: StateLayer,
    ) -> Tensor:
        wide = qkv.to(self.state_dtype)
        return scan.delta_rule(step, group, spec, wide, log_decay, beta, cache, self.grid).to(qkv.dtype)

    def state_space(
        self,
        step: Step,
        group: int,
        spec: Mamba2,
        xbc: Tensor,
        dt: Tensor,
        decay_rate: Tensor,
        cache: StateLayer,
    ) -> Tensor:
        wide = xbc.to(self.state_dtype)
        return scan.state_space(step, group, spec, wide, dt, decay_rate, cache, self.grid).to(xbc.dtype)

    def experts(
        self,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        up: Tensor,
        down: Tensor,
        activation: str,
        gated: bool,
    ) -> Tensor:
        return experts.mix(self.linear, x, chosen, weights, up, down, activation, gated)


def tiled_linear(x: Tensor, weight: Tensor, bias: Tensor | None, tile: int) -> Tensor:
    """A product in tiles of `tile` rows, the last filled up with zeros."""
    rows = x.shape[0]
    missing = -rows % tile
    if missing:
        x = torch.cat([x, x.new_zeros(missing, x.shape[1])])
    out = x.new_empty(len(x), weight.shape[0])
    transposed = weight.T
    for part, into in zip(x.split(tile), out.split(tile), strict=True):
        if bias is None:
            torch.mm(part, transposed, out=into)
        else:
            torch.addmm(bias, part, transposed, out=into)
    return out[:rows]
