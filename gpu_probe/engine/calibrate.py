"""Step times of a device, measured on a designed grid of batches: what `cost` is fitted on.

Batches need no scheduler: contexts are blocks with random contents, as a step's time does not depend on values.
Knows steps and clocks; no request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvtune.gpu_probe.engine.clocks import StepShape
from kvtune.gpu_probe.engine.cost import StepCost, fit_step_cost
from kvtune.gpu_probe.engine.probe import Probe
from kvtune.gpu_probe.engine.step import Segment, build_step

Share = tuple[int, int]
"""Positions computed before, and tokens to compute."""

PREFILLS: tuple[int, ...] = (16, 64, 256, 1024)
PREFILL_CONTEXTS: tuple[int, ...] = (0, 1024, 4096)
DECODES: tuple[int, ...] = (1, 4, 16, 64)
DECODE_CONTEXTS: tuple[int, ...] = (256, 1024, 4096)


@dataclass(frozen=True)
class Calibration:
    """Batches, their seconds, and the model fitted on two thirds of them."""

    shapes: tuple[StepShape, ...]
    seconds: tuple[float, ...]
    cost: StepCost


class Harness:
    """Steps of sequences whose blocks are taken in order, without a scheduler."""

    def __init__(self, probe: Probe, num_blocks: int) -> None:
        self.probe = probe
        self.pools = probe.allocate(num_blocks)
        self.pools.fill(0.01)
        self._next = 1

    def tables(self, length: int) -> tuple[np.ndarray, ...]:
        """Fresh blocks for `length` tokens in every group."""
        tables = []
        for group in self.probe.layers:
            count = -(-length // group.group.block_size)
            tables.append(np.arange(self._next, self._next + count))
            self._next += count
        return tuple(tables)

    def release(self) -> None:
        """Every block is free again; contents stay."""
        self._next = 1

    def run(self, segments: Sequence[Segment]) -> torch.Tensor:
        """One step; logits of the shares that emit."""
        probe = self.probe
        step, copies = build_step(segments, probe.layers, device=probe.device, grid=probe.grid)
        self.pools.copy(copies)
        return probe.model.forward(step, self.pools)

    def batch(self, shares: Sequence[Share], seed: int = 0) -> list[Segment]:
        """Shares of sequences of their own, with random tokens."""
        rng = np.random.default_rng(seed)
        vocab = self.probe.spec.vocab_size
        return [
            Segment(rng.integers(0, vocab, count), start, self.tables(start + count))
            for start, count in shares
        ]


def designed_batches() -> list[list[Share]]:
    """Prefills alone by size and context, decodes by batch and context, and both in one step."""
    batches: list[list[Share]] = [[(context, count)] for count in PREFILLS for context in PREFILL_CONTEXTS]
    batches += [[(context, 1)] * count for count in DECODES for context in DECODE_CONTEXTS]
    batches += [[(1024, count)] * 3 for count in PREFILLS[:3]]
    batches += [
        [(context, 256)] + [(1024, 1)] * count for count in DECODES for context in PREFILL_CONTEXTS[:2]
    ]
    return batches


def shape_of(shares: Sequence[Share]) -> StepShape:
    """A batch as the cost model sees it."""
    prefills = [(start, count) for start, count in shares if count > 1]
    decodes = [start for start, count in shares if count == 1]
    return StepShape(
        prefill_tokens=sum(count for _, count in prefills),
        prefill_sequences=len(prefills),
        attended_pairs=sum(count * start + count * (count + 1) // 2 for start, count in prefills),
        decode_tokens=len(decodes),
        decode_context=sum(decodes),
    )


def calibrate(
    probe: Probe,
    batches: Sequence[Sequence[Share]] | None = None,
    *,
    repeats: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> Calibration:
    """Runs every batch that fits in memory `repeats` times after one to warm up, takes the fastest, and fits.

    Raises:
        ValueError: too few batches fit.
    """
    batches = designed_batches() if batches is None else batches
    sizes = [group.group.block_size for group in probe.layers]
    needed = [
        sum(-(-(start + count) // size) for start, count in batch for size in sizes) for batch in batches
    ]
    largest = min(max(needed) + 1, probe.largest_pool())
    harness = Harness(probe, largest)
    batches = [batch for batch, blocks in zip(batches, needed, strict=True) if blocks < largest]
    shapes, seconds = [], []
    for batch in batches:
        harness.release()
        segments = harness.batch(batch)
        times = []
        for _ in range(repeats + 1):
            start = clock()
            harness.run(segments)
            if probe.device.type == "cuda":
                torch.cuda.synchronize()
            times.append(clock() - start)
        shapes.append(shape_of(batch))
        seconds.append(min(times[1:]))
    return Calibration(tuple(shapes), tuple(seconds), fit_step_cost(shapes, seconds))
