"""The causal depthwise convolution over packed sequences, as shifted products.

Each sequence's rows stand behind the last kernel - 1 inputs of what came before, so a token's sum is the same
whatever chunk it is computed in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvtune.gpu_probe.engine.grid import round_up
from kvtune.gpu_probe.engine.pools import StateLayer
from kvtune.gpu_probe.engine.step import Step

Tensor = torch.Tensor


@dataclass(frozen=True)
class ConvLayout:
    """Index arrays: M places, each sequence's kernel - 1 earlier inputs before its rows.

    Attributes:
        gather: int64[M + kernel - 1], source of each place: an earlier input (b * (kernel - 1) + r) or, behind
            those, a row of the step.
        results: int64[T], the window that ends at each row.
        tails: int64[B, kernel - 1], places of each sequence's last inputs.
    """

    gather: Tensor
    results: Tensor
    tails: Tensor


def conv_layout(step: Step, kernel: int) -> ConvLayout:
    """The layout for a kernel of `kernel` taps."""
    history = kernel - 1
    batch = step.num_sequences
    base = step.first_row[:-1] + np.arange(batch) * history
    places = step.num_tokens + batch * history
    multiple = step.grid.row_multiple if step.grid is not None and step.grid.padded_rows else 1
    gather = np.zeros(round_up(places, multiple) + history, dtype=np.int64)
    before = np.arange(history)
    gather[base[:, None] + before] = np.arange(batch)[:, None] * history + before
    owner = np.repeat(np.arange(batch), step.lengths)
    row = np.arange(step.num_tokens)
    gather[row + (owner + 1) * history] = batch * history + row
    ends = base + history + step.lengths
    return ConvLayout(
        gather=step.upload(gather),
        results=step.upload(row + owner * history),
        tails=step.upload(ends[:, None] - history + before),
    )


def causal_conv(
    step: Step, group: int, x: Tensor, weight: Tensor, bias: Tensor | None, cache: StateLayer
) -> Tensor:
    """`Ops.causal_conv`."""
    kernel = weight.shape[1]
    source, target = step.state_source[group], step.state_target[group]
    if step.num_sequences == 1:
        # The rows already stand behind one another.
        laid = torch.cat([cache.conv[source][0], x])
        cache.conv[target] = laid[None, step.num_tokens : step.num_tokens + kernel - 1]
        return _convolve(laid, weight, bias)
    layout = step.plan(("conv", kernel), lambda: conv_layout(step, kernel))
    earlier = cache.conv.index_select(0, source).flatten(0, 1)
    laid = torch.cat([earlier, x[: step.num_tokens]]).index_select(0, layout.gather)
    cache.conv[target] = laid[layout.tails]
    picked = _convolve(laid, weight, bias).index_select(0, layout.results)
    if step.rows == step.num_tokens:
        return picked
    return torch.cat([picked, picked.new_zeros(step.rows - step.num_tokens, picked.shape[1])])


def _convolve(laid: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """laid [M + kernel - 1, C] -> [M, C]."""
    kernel = weight.shape[1]
    count = len(laid) - (kernel - 1)
    taps = weight.T.contiguous()
    total = laid[:count] * taps[0]
    for tap in range(1, kernel):
        total = torch.addcmul(total, laid[tap : tap + count], taps[tap])
    return total if bias is None else total + bias
