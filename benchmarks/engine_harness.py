"""What the figures of `engine.py` share: models, a dense stand-in for paging, clocks and workloads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from kvtune.analyzers.layout import EngineConfig, KVCacheGroup
from kvtune.gpu_probe.engine.calibrate import Harness
from kvtune.gpu_probe.engine.grid import ExactGrid
from kvtune.gpu_probe.engine.ops.fast import FastOps
from kvtune.gpu_probe.engine.probe import Probe
from kvtune.gpu_probe.engine.spec import Attention, Block, GatedDeltaNet, Mamba2, Mlp, ModelSpec
from kvtune.gpu_probe.engine.step import Segment
from kvtune.gpu_probe.engine.weights import synthetic_weights

WINDOW = 256
GROUPS = (
    KVCacheGroup("mamba", 1024, mode="align"),
    KVCacheGroup("sliding_window", 1024, window=WINDOW),
    KVCacheGroup("full", 1024),
)
CONFIG = EngineConfig(groups=GROUPS)


def four_layers(width: int = 256, vocab: int = 4096) -> ModelSpec:
    """A gated delta net, a window of 256, a Mamba-2 and a full attention layer."""
    attention = Attention(4, 2, 64, 0.125, rotary_dim=64)
    mixers = (
        GatedDeltaNet(4, 4, 64, 64, 4),
        replace(attention, window=WINDOW),
        Mamba2(8, 64, 64, 1, 4),
        attention,
    )
    blocks = []
    for layer, mixer in enumerate(mixers):
        blocks.append(Block(f"layers.{layer}.mixer", layer, mixer))
        blocks.append(Block(f"layers.{layer}.feed_forward", layer, Mlp(2 * width)))
    return ModelSpec("benchmark", width, vocab, tuple(blocks))


def make_probe(
    spec: ModelSpec, config: EngineConfig = CONFIG, grid: ExactGrid | None = None, ops=None
) -> Probe:
    weights = synthetic_weights(spec, 0, torch.float32, torch.float32)
    return Probe(spec, config, weights, grid=grid, ops=ops)


class DenseOps(FastOps):
    """The same model over contiguous keys and values: no page is written or gathered."""

    def attention(self, step, group, spec, query, key, value, cache):  # noqa: ARG002
        share = spec.num_heads // spec.num_kv_heads
        queries = query.unflatten(1, (spec.num_kv_heads, share)).permute(1, 2, 0, 3)
        keys, values = (part.transpose(0, 1)[:, None] for part in (key, value))
        out = torch.empty_like(query)
        for first in range(0, len(query), 256):
            last = min(first + 256, len(query))
            low = 0 if spec.window is None else max(first - spec.window + 1, 0)

            def mask(first=first, last=last, low=low):
                at, seen = torch.arange(first, last)[:, None], torch.arange(low, last)[None]
                hidden = seen > at
                if spec.window is not None:
                    hidden = hidden | (seen <= at - spec.window)
                return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))

            shape = (spec.num_kv_heads, share, last - low, spec.head_dim)
            result = scaled_dot_product_attention(
                queries[:, :, first:last],
                keys[:, :, low:last].expand(shape),
                values[:, :, low:last].expand(shape),
                attn_mask=step.plan(("dense", spec.window, first), mask),
                scale=spec.scale,
            )
            out[first:last] = result.permute(2, 0, 1, 3).flatten(1, 2)
        return out


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def interleaved(
    rounds: int, one: Callable[[], object], other: Callable[[], object]
) -> tuple[float, float, float]:
    """Median seconds of both sides and the median of the per-round ratios one / other."""
    one(), other()
    pairs = []
    for number in range(rounds):
        sides = (
            [cpu_seconds(one), cpu_seconds(other)]
            if number % 2 == 0
            else [cpu_seconds(other), cpu_seconds(one)][::-1]
        )
        pairs.append(tuple(sides))
    ones, others = zip(*pairs, strict=True)
    ratio = statistics.median(a / b for a, b in pairs)
    return statistics.median(ones), statistics.median(others), ratio


def chunked(harness: Harness, ids: np.ndarray, size: int = 512) -> Callable[[], None]:
    tables = harness.tables(len(ids))

    def work() -> None:
        for start in range(0, len(ids), size):
            harness.run([Segment(ids[start : start + size], start, tables)])

    return work


def whole(harness: Harness, ids: np.ndarray) -> Callable[[], object]:
    tables = harness.tables(len(ids))
    return lambda: harness.run([Segment(ids, 0, tables)])
