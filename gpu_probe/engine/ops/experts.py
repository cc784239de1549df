"""Mixture of experts: tokens sorted by expert, one product per expert that has any.

On CUDA the grouped product of torch keeps the counts on the device; elsewhere they are read, which waits for
nothing on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from kvtune.gpu_probe.engine.ops.pointwise import feed_forward_inner

Tensor = torch.Tensor


def mix(
    linear: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    up: Tensor,
    down: Tensor,
    activation: str,
    gated: bool,
) -> Tensor:
    """`Ops.experts`; a token's experts are summed in the order of their choice, whatever the batch."""
    tokens, top_k = chosen.shape
    order = chosen.flatten().argsort(stable=True)
    arranged = x[order // top_k]
    if x.device.type == "cuda" and hasattr(functional, "grouped_mm") and x.dtype == torch.bfloat16:
        # Counted on the device: `bincount` would wait for its largest value.
        counts = torch.zeros(len(up), dtype=torch.int64, device=x.device)
        counts.index_add_(0, chosen.flatten(), torch.ones_like(order))
        ends = counts.cumsum(0).to(torch.int32)
        inner = feed_forward_inner(
            functional.grouped_mm(arranged, up.transpose(1, 2), offs=ends), activation, gated
        )
        result = functional.grouped_mm(inner, down.transpose(1, 2), offs=ends)
    else:
        sizes = torch.bincount(chosen.flatten(), minlength=len(up)).tolist()
        parts = [
            linear(feed_forward_inner(linear(part, up[expert]), activation, gated), down[expert])
            for expert, part in enumerate(arranged.split(sizes))
            if len(part)
        ]
        result = torch.cat(parts)
    back = torch.empty_like(result)
    back[order] = result
    return (back.view(tokens, top_k, -1) * weights[..., None]).sum(1)
