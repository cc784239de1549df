"""`Decoder`: a hybrid decoder over a packed step. Calls an op set; knows no kernel, chunk or block rule.

Weights are those of `weights.tensor_specs`; norm weights are stored as the factor that is applied (a zero-centred
norm's one is added when it is loaded).
"""

from __future__ import annotations

import torch
from torch.nn import functional

from kvtune.gpu_probe.engine.ops.interface import Ops
from kvtune.gpu_probe.engine.ops.pointwise import feed_forward_inner, rotary_table, rotate
from kvtune.gpu_probe.engine.pools import CachePools
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
from kvtune.gpu_probe.engine.step import Step
from kvtune.gpu_probe.engine.weights import Weights

Tensor = torch.Tensor


class Decoder:
    """A model on a device. `group_of[i]` is the KV cache group of block i (blocks without cache: absent)."""

    def __init__(self, spec: ModelSpec, weights: Weights, ops: Ops, group_of: dict[int, int]) -> None:
        self.spec = spec
        self.weights = weights
        self.ops = ops
        self.group_of = group_of
        # exp once: the rate is the same for every token.
        self._rates = {name: -value.exp() for name, value in weights.items() if name.endswith(".log_rate")}

    @torch.inference_mode()
    def forward(self, step: Step, pools: CachePools, every_row: bool = False) -> Tensor:
        """Logits [E, vocab] of the rows in `step.emit`, or of all T tokens."""
        spec, weights = self.spec, self.weights
        x = functional.embedding(step.ids, weights["embedding"])
        if spec.embedding_scale != 1.0:
            x = x * spec.embedding_scale
        for index, block in enumerate(spec.blocks):
            y = self.ops.rms_norm(x, weights[f"{block.name}.norm"], spec.norm_eps)
            y = self._operate(step, index, block, y, pools)
            if block.post_norm:
                y = self.ops.rms_norm(y, weights[f"{block.name}.post_norm"], spec.norm_eps)
            x = x + (y if spec.residual_scale == 1.0 else y * spec.residual_scale)
        x = x[: step.num_tokens] if every_row else x[step.emit]
        x = self.ops.rms_norm(x, weights["norm"], spec.norm_eps)
        logits = self.ops.linear(x, weights["embedding" if spec.tied_head else "head"])
        return logits if spec.logits_scale == 1.0 else logits * spec.logits_scale

    def _operate(self, step: Step, index: int, block: Block, x: Tensor, pools: CachePools) -> Tensor:
        operator = block.operator
        if isinstance(operator, Attention):
            return self._attention(step, index, block.name, operator, x, pools)
        if isinstance(operator, GatedDeltaNet):
            return self._delta_net(step, index, block.name, operator, x, pools)
        if isinstance(operator, Mamba2):
            return self._mamba2(step, index, block.name, operator, x, pools)
        if isinstance(operator, ShortConv):
            return self._short_conv(step, index, block.name, x, pools)
        if isinstance(operator, Mlp):
            return self._mlp(block.name, operator, x)
        return self._moe(block.name, operator, x)

    def _attention(
        self, step: Step, index: int, name: str, op: Attention, x: Tensor, pools: CachePools
    ) -> Tensor:
        weights = self.weights
        fused = self.ops.linear(x, weights[f"{name}.in"], weights.get(f"{name}.in_bias"))
        query, key, value, gate = fused.split(
            [op.query_size, op.kv_size, op.kv_size, op.query_size if op.output_gate else 0], dim=-1
        )
        query, key, value = (part.unflatten(-1, (-1, op.head_dim)) for part in (query, key, value))
        if op.qk_norm:
            query = self.ops.rms_norm(query, weights[f"{name}.query_norm"], self.spec.norm_eps)
            key = self.ops.rms_norm(key, weights[f"{name}.key_norm"], self.spec.norm_eps)
        if op.rotary_dim:
            cos, sin = step.plan(
                ("rotary", op.rotary_dim, op.rope_theta),
                lambda: rotary_table(step.positions, op.rotary_dim, op.rope_theta),
            )
            query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        mixed = self.ops.attention(
            step, self.group_of[index], op, query, key, value, pools.kv(index)
        ).flatten(1)
        if op.output_gate:
            mixed = mixed * gate.sigmoid()
        return self.ops.linear(mixed, weights[f"{name}.out"])

    def _delta_net(
        self, step: Step, index: int, name: str, op: GatedDeltaNet, x: Tensor, pools: CachePools
    ) -> Tensor:
        weights, group, cache = self.weights, self.group_of[index], pools.state(index)
        fused = self.ops.linear(x, weights[f"{name}.in"])
        heads = op.num_value_heads
        qkv, z, gain, rate = fused.split([op.conv_size, op.inner_size, heads, heads], dim=-1)
        qkv = functional.silu(self.ops.causal_conv(step, group, qkv, weights[f"{name}.conv"], None, cache))
        wide = self.ops.state_dtype
        softened = functional.softplus(rate.to(wide) + weights[f"{name}.step_bias"])
        log_decay = self._rates[f"{name}.log_rate"] * softened
        mixed = self.ops.delta_rule(step, group, op, qkv, log_decay, gain.to(wide).sigmoid(), cache)
        mixed = self.ops.rms_norm(mixed, weights[f"{name}.gate_norm"], self.spec.norm_eps)
        gate = functional.silu(z.unflatten(-1, (heads, op.value_dim)))
        return self.ops.linear((mixed * gate).flatten(1), weights[f"{name}.out"])

    def _mamba2(self, step: Step, index: int, name: str, op: Mamba2, x: Tensor, pools: CachePools) -> Tensor:
        weights, group, cache = self.weights, self.group_of[index], pools.state(index)
        fused = self.ops.linear(x, weights[f"{name}.in"])
        xbc, z, dt = fused.split([op.conv_size, op.inner_size, op.num_heads], dim=-1)
        bias = weights[f"{name}.conv_bias"]
        xbc = functional.silu(self.ops.causal_conv(step, group, xbc, weights[f"{name}.conv"], bias, cache))
        dt = functional.softplus(dt.to(self.ops.state_dtype) + weights[f"{name}.step_bias"])
        mixed = self.ops.state_space(step, group, op, xbc, dt, self._rates[f"{name}.log_rate"], cache)
        skip = weights[f"{name}.skip"].to(x.dtype)[:, None]
        mixed = mixed + xbc[:, : op.inner_size].unflatten(-1, (op.num_heads, op.head_dim)) * skip
        mixed = mixed.flatten(1) * functional.silu(z)
        # The norm is over each group of heads, its weight over all channels.
        grouped = mixed.unflatten(-1, (op.num_groups, -1))
        norm = self.ops.rms_norm(grouped, torch.ones_like(grouped[0, 0]), self.spec.norm_eps)
        return self.ops.linear(norm.flatten(1) * weights[f"{name}.gate_norm"], weights[f"{name}.out"])

    def _short_conv(self, step: Step, index: int, name: str, x: Tensor, pools: CachePools) -> Tensor:
        weights = self.weights
        before, after, value = self.ops.linear(x, weights[f"{name}.in"]).chunk(3, dim=-1)
        mixed = self.ops.causal_conv(
            step, self.group_of[index], before * value, weights[f"{name}.conv"], None, pools.state(index)
        )
        return self.ops.linear(after * mixed, weights[f"{name}.out"])

    def _mlp(self, name: str, op: Mlp, x: Tensor) -> Tensor:
        up = self.ops.linear(x, self.weights[f"{name}.in"])
        return self.ops.linear(feed_forward_inner(up, op.activation, op.gated), self.weights[f"{name}.out"])

    def _moe(self, name: str, op: Moe, x: Tensor) -> Tensor:
        weights = self.weights
        scores = self.ops.linear(x, weights[f"{name}.router"]).to(self.ops.state_dtype)
        if op.router == "sigmoid":
            gates = scores.sigmoid()
            chosen = (gates + weights[f"{name}.router_bias"]).topk(op.top_k, dim=-1).indices
            share = gates.gather(-1, chosen)
        elif op.router == "softmax_then_topk":
            share, chosen = scores.softmax(-1).topk(op.top_k, dim=-1)
        else:
            share, chosen = scores.topk(op.top_k, dim=-1)
            share = share.softmax(-1)
        if op.normalize and op.router != "topk_then_softmax":
            share = share / share.sum(-1, keepdim=True)
        share = (share * op.routed_scale).to(x.dtype)
        up, down = weights[f"{name}.experts_in"], weights[f"{name}.experts_out"]
        out = self.ops.experts(x, chosen, share, up, down, op.activation, op.gated)
        if op.shared_intermediate:
            inner = feed_forward_inner(
                self.ops.linear(x, weights[f"{name}.shared_in"]), op.activation, op.gated
            )
            shared = self.ops.linear(inner, weights[f"{name}.shared_out"])
            if op.shared_gate:
                shared = shared * self.ops.linear(x, weights[f"{name}.shared_gate"]).sigmoid()
            out = out + shared
        return out
