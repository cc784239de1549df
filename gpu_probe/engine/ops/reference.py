"""`ReferenceOps`: what each operation means, one sequence and one token at a time, in any float type.

Slow on purpose. Attention is a brute-force mask over gathered keys; scans are the token recurrences of the papers.
Knows nothing of chunks or grids.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from kvtune.gpu_probe.engine.ops.pointwise import feed_forward_inner, unit_length
from kvtune.gpu_probe.engine.pools import KVLayer, StateLayer
from kvtune.gpu_probe.engine.spec import Attention, GatedDeltaNet, Mamba2
from kvtune.gpu_probe.engine.step import Step

Tensor = torch.Tensor


class ReferenceOps:
    """Implements `interface.Ops`."""

    def __init__(self, state_dtype: torch.dtype = torch.float64) -> None:
        self.state_dtype = state_dtype

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return functional.linear(x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.to(self.state_dtype)
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)

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
        block, offset = step.slots[group]
        cache.keys[block, offset] = key[: step.num_tokens]
        cache.values[block, offset] = value[: step.num_tokens]
        out = torch.zeros_like(query)
        for b, rows in _sequences(step):
            end = int(step.starts[b] + step.lengths[b])
            blocks = step.upload(step.tables[group][b])
            keys = cache.keys[blocks].flatten(0, 1)[:end].to(self.state_dtype)
            values = cache.values[blocks].flatten(0, 1)[:end].to(self.state_dtype)
            at = step.positions[rows][:, None]
            seen = torch.arange(end, device=at.device)[None]
            visible = seen <= at
            if spec.window is not None:
                visible &= seen > at - spec.window
            heads = spec.num_heads // spec.num_kv_heads
            first = int(visible.any(0).nonzero()[0]) if len(at) else 0
            keys, values, visible = keys[first:], values[first:], visible[:, first:]
            scores = torch.einsum(
                "thd,shd->hts", query[rows].to(self.state_dtype), keys.repeat_interleave(heads, 1)
            )
            scores = (scores * spec.scale).masked_fill(~visible, float("-inf"))
            mixed = torch.einsum("hts,shd->thd", scores.softmax(-1), values.repeat_interleave(heads, 1))
            out[rows] = mixed.to(query.dtype)
        return out

    def causal_conv(
        self, step: Step, group: int, x: Tensor, weight: Tensor, bias: Tensor | None, cache: StateLayer
    ) -> Tensor:
        out = torch.zeros_like(x)
        kernel = weight.shape[1]
        sources = [cache.conv[step.state_source[group][b]].clone() for b in range(step.num_sequences)]
        for b, rows in _sequences(step):
            window = torch.cat([sources[b], x[rows]])
            for t in range(int(step.lengths[b])):
                out[int(step.first_row[b]) + t] = (window[t : t + kernel] * weight.T).sum(0)
            cache.conv[step.state_target[group][b]] = window[len(window) - (kernel - 1) :]
        return out if bias is None else out + bias

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
        assert cache.state is not None
        share = spec.num_value_heads // spec.num_key_heads
        query, key, value = qkv.to(self.state_dtype).split(
            [spec.key_size, spec.key_size, spec.inner_size], dim=-1
        )
        query = unit_length(query.unflatten(-1, (spec.num_key_heads, -1))).repeat_interleave(share, 1)
        key = unit_length(key.unflatten(-1, (spec.num_key_heads, -1))).repeat_interleave(share, 1)
        query = query * spec.key_dim**-0.5
        value = value.unflatten(-1, (spec.num_value_heads, -1))
        out = torch.zeros_like(value)
        states = [
            cache.state[step.state_source[group][b]].to(self.state_dtype) for b in range(step.num_sequences)
        ]
        for b, rows in _sequences(step):
            state = states[b]
            for t in range(rows.start, rows.stop):
                state = state * log_decay[t].exp()[:, None, None]
                error = value[t] - torch.einsum("hkv,hk->hv", state, key[t])
                state = state + torch.einsum("hk,hv->hkv", key[t], error * beta[t][:, None])
                out[t] = torch.einsum("hkv,hk->hv", state, query[t])
            cache.state[step.state_target[group][b]] = state.to(cache.state.dtype)
        return out.to(qkv.dtype)

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
        assert cache.state is not None
        shared = spec.num_groups * spec.state_size
        x, b_in, c_out = xbc.to(self.state_dtype).split([spec.inner_size, shared, shared], dim=-1)
        x = x.unflatten(-1, (spec.num_heads, -1))
        share = spec.num_heads // spec.num_groups
        b_in = b_in.unflatten(-1, (spec.num_groups, -1)).repeat_interleave(share, 1)
        c_out = c_out.unflatten(-1, (spec.num_groups, -1)).repeat_interleave(share, 1)
        out = torch.zeros_like(x)
        states = [
            cache.state[step.state_source[group][b]].to(self.state_dtype) for b in range(step.num_sequences)
        ]
        for b, rows in _sequences(step):
            state = states[b]
            for t in range(rows.start, rows.stop):
                decay = (dt[t] * decay_rate).exp()[:, None, None]
                state = state * decay + torch.einsum("hp,hn->hpn", x[t] * dt[t][:, None], b_in[t])
                out[t] = torch.einsum("hpn,hn->hp", state, c_out[t])
            cache.state[step.state_target[group][b]] = state.to(cache.state.dtype)
        return out.to(xbc.dtype)

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
        out = torch.zeros_like(x)
        for token in range(len(x)):
            for expert, weight in zip(chosen[token].tolist(), weights[token], strict=True):
                inner = feed_forward_inner(x[token] @ up[expert].T, activation, gated)
                out[token] += weight * (inner @ down[expert].T)
        return out


def _sequences(step: Step) -> Iterator[tuple[int, slice]]:
    for b in range(step.num_sequences):
        yield b, slice(int(step.first_row[b]), int(step.first_row[b + 1]))
