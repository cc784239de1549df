"""`Ops`: what a set of operations must offer to `Decoder`; where faster kernels plug in.

Shapes: T rows of a step (padding included), H query heads, K kv heads, D head_dim, C channels. Every operation on
cached state reads it at the step's sources and writes it at its targets; the null block is never written.
"""

from __future__ import annotations

from typing import Protocol

import torch

from kvtune.gpu_probe.engine.pools import KVLayer, StateLayer
from kvtune.gpu_probe.engine.spec import Attention, GatedDeltaNet, Mamba2
from kvtune.gpu_probe.engine.step import Step

Tensor = torch.Tensor


class Ops(Protocol):
    """Tensors are in the model's dtype; scans and their states in `state_dtype`."""

    state_dtype: torch.dtype

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """[T, in] x [out, in] -> [T, out]."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Over the last axis."""

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
        """Stores keys and values [T, K, D], then attends: query [T, H, D] -> [T, H, D]."""

    def causal_conv(
        self, step: Step, group: int, x: Tensor, weight: Tensor, bias: Tensor | None, cache: StateLayer
    ) -> Tensor:
        """Depthwise over time, x [T, C], weight [C, kernel] -> [T, C]; carries the last kernel - 1 inputs."""

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
        """Gated delta rule: qkv [T, conv_size], log_decay and beta [T, value heads] -> [T, value heads, value_dim]."""

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
        """Mamba-2 without the skip: xbc [T, conv_size], dt [T, heads], rates [heads] < 0 -> [T, heads, head_dim]."""

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
        """x [T, in], chosen and weights [T, top_k], up [E, width, in], down [E, in, inner] -> [T, in]."""
