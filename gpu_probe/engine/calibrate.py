"""Step times of a device, measured on a designed grid of batches and on others to try the fit on: what `cost` is
fitted on.

Batches need no scheduler: contexts are blocks with random contents, as a step's time does not depend on values.
All batches are timed in turn, in another order each round, and the fastest of a batch counts: a disturbance or a
drift of the machine then hits all alike, and the least disturbed time is kept. Knows steps and clocks; no request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvtune.analyzers.step_times import LinearStepTimes, StepShape
from kvtune.analyzers.step_times.shape import attended_pairs
from kvtune.gpu_probe.engine.cost import LEAST_BATCHES, Timed, fit_step_times
from kvtune.gpu_probe.engine.probe import Probe
from kvtune.gpu_probe.engine.step import Segment, build_step

Share = tuple[int, int]
"""Positions computed before, and tokens to compute."""
Batch = list[Share]
Progress = Callable[[int, int], None]
"""Rounds done, rounds in all."""

PREFILLS: tuple[int, ...] = (16, 64, 256, 1024)
DECODES: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
SHORTEST_CONTEXT = 4096
LONGEST_CONTEXT = 32768
"""Between these the grid reaches as far as the requests do."""

MOST_CONTEXT_TOKENS = 1 << 18
"""Positions that the sequences of one batch hold together."""

HELD_OUT = 24
REPEATS = 6
LEAST_REPEATS = 3
BUDGET_S = 20.0
"""Rounds beyond the least end where these seconds have passed."""

BUDGET_FLOP = {"cpu": 1e12, "cuda": 1e17}
"""What timing all batches may take; the longest are left out first."""


@dataclass(frozen=True)
class Calibration:
    """Batches, their seconds, and the model fitted on them. `cost` holds its error on others."""

    shapes: tuple[StepShape, ...]
    seconds: tuple[float, ...]
    cost: LinearStepTimes


@dataclass(frozen=True)
class Design:
    """Batches to fit on, and others to try the fit on."""

    grid: Sequence[Batch]
    held_out: Sequence[Batch]

    @classmethod
    def reaching(cls, longest: int) -> Design:
        """Contexts of up to so many tokens."""
        return cls(designed_batches(longest), held_out_batches(longest))


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


def grid_context(longest_request: int) -> int:
    """The longest context of a grid for requests of up to so many tokens: a power of two."""
    return min(max(1 << (longest_request - 1).bit_length(), SHORTEST_CONTEXT), LONGEST_CONTEXT)


def designed_batches(longest: int = SHORTEST_CONTEXT) -> list[Batch]:
    """Prefills alone by size and context, decodes by batch and context, several prefills, and both in one step."""
    middle = longest // 4
    contexts = (longest // 16, middle, longest)
    batches = [[(context, count)] for count in PREFILLS for context in (0, *contexts)]
    batches += [[(context, 1)] * count for count in DECODES for context in contexts]
    batches += [[(middle, count)] * sequences for sequences in (2, 4) for count in PREFILLS[:3]]
    batches += [
        [(middle, prefill)] + [(middle, 1)] * decodes for prefill in PREFILLS for decodes in (1, 4, 16, 64)
    ]
    batches += [
        [(prefilled, 256)] + [(decoded, 1)] * 16
        for prefilled, decoded in ((longest, longest), (0, longest), (0, longest // 16))
    ]
    return [batch for batch in batches if _context_tokens(batch) <= MOST_CONTEXT_TOKENS]


def held_out_batches(longest: int = SHORTEST_CONTEXT, count: int = HELD_OUT, seed: int = 7) -> list[Batch]:
    """Batches drawn at random inside the grid, sizes and contexts uniform in their logarithm: a third prefills of one
    to three sequences, a third decodes, a third both."""
    rng = np.random.default_rng(seed)

    def draw(low: int, high: int) -> int:
        return round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))

    batches: list[Batch] = []
    while len(batches) < count:
        kind = len(batches) % 3
        batch: Batch = []
        if kind != 1:
            sequences = int(rng.integers(1, 4))
            batch += [(draw(1, longest + 1) - 1, draw(16, 1024 // sequences)) for _ in range(sequences)]
        if kind != 0:
            batch += [(draw(longest // 16, longest), 1) for _ in range(draw(1, 64))]
        if _context_tokens(batch) <= MOST_CONTEXT_TOKENS:
            batches.append(batch)
    return batches


def _context_tokens(batch: Batch) -> int:
    return sum(start + count for start, count in batch)


def shape_of(shares: Sequence[Share]) -> StepShape:
    """A batch as the cost model sees it."""
    prefills = [(start, count) for start, count in shares if count > 1]
    decodes = [start for start, count in shares if count == 1]
    return StepShape(
        prefill_tokens=sum(count for _, count in prefills),
        prefill_requests=len(prefills),
        attended_pairs=sum(attended_pairs(start, count) for start, count in prefills),
        decode_tokens=len(decodes),
        decode_context=sum(decodes),
    )


def calibrate(
    probe: Probe,
    design: Design | None = None,
    *,
    repeats: int = REPEATS,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress | None = None,
) -> Calibration:
    """Times a design's batches, and fits.

    Raises:
        ValueError: too few batches fit.
    """
    design = design or Design.reaching(SHORTEST_CONTEXT)
    ((fitted, held),) = time_models([(probe, ())], design, repeats=repeats, clock=clock, progress=progress)
    cost = fit_step_times(fitted.shapes, fitted.seconds, held.shapes, held.seconds)
    return Calibration(tuple(fitted.shapes), tuple(fitted.seconds), cost)


def time_models(
    models: Sequence[tuple[Probe, tuple[int, ...]]],
    design: Design,
    *,
    repeats: int = REPEATS,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress | None = None,
) -> list[tuple[Timed, Timed]]:
    """The grid's and the held-out batches' times on each model, in rounds over all of them: one to warm up, then
    `repeats`, or fewer where time is up. `models`: with how many layers they have of each kind.

    Raises:
        ValueError: too few batches fit in memory and time.
    """
    rng = np.random.default_rng(0)
    try:
        timings = [_Timing(probe, layers, design, repeats) for probe, layers in models]
        began = time.monotonic()
        for number in range(repeats + 1):
            for timing in timings:
                timing.run(rng, clock, counts=number > 0)
            if progress is not None:
                progress(number + 1, repeats + 1)
            if number >= LEAST_REPEATS and time.monotonic() - began > BUDGET_S * len(timings):
                break
    except torch.OutOfMemoryError as error:
        raise ValueError("memory ran out while steps were timed") from error
    return [timing.result() for timing in timings]


class _Timing:
    """One model's batches, those that it can hold and afford, and the fastest time of each."""

    def __init__(self, probe: Probe, layers: tuple[int, ...], design: Design, repeats: int) -> None:
        batches = [*design.grid, *design.held_out]
        sizes = [group.group.block_size for group in probe.layers]
        blocks = [
            sum(-(-(start + count) // size) for start, count in batch for size in sizes) for batch in batches
        ]
        largest = probe.largest_pool()
        per_token = 2.0 * probe.spec.active_parameters() * (repeats + 1)
        tokens = np.array([sum(count for _, count in batch) for batch in batches])
        order = np.argsort(tokens, kind="stable")
        affordable = np.zeros(len(batches), dtype=bool)
        affordable[order] = np.cumsum(tokens[order]) * per_token <= BUDGET_FLOP[probe.device.type]
        kept = [index for index, needed in enumerate(blocks) if needed < largest and affordable[index]]
        self._num_fitted = sum(index < len(design.grid) for index in kept)
        if self._num_fitted < LEAST_BATCHES or self._num_fitted == len(kept):
            raise ValueError("steps of this model are too long, or too large, for this device")
        self._layers = layers
        self._batches = [batches[index] for index in kept]
        self._harness = Harness(probe, max(blocks[index] for index in kept) + 1)
        self._prepared = []
        for batch in self._batches:
            self._harness.release()
            self._prepared.append(self._harness.batch(batch))
        self._fastest = [float("inf")] * len(kept)

    def run(self, rng: np.random.Generator, clock: Callable[[], float], *, counts: bool) -> None:
        """All batches once, in an order of their own."""
        for index in rng.permutation(len(self._prepared)).tolist():
            start = clock()
            self._harness.run(self._prepared[index])
            if self._harness.probe.device.type == "cuda":
                torch.cuda.synchronize()
            taken = clock() - start
            if counts:
                self._fastest[index] = min(self._fastest[index], taken)

    def result(self) -> tuple[Timed, Timed]:
        """Those to fit on, and those that were held out."""
        shapes, end = [shape_of(batch) for batch in self._batches], self._num_fitted
        return (
            Timed(self._layers, shapes[:end], self._fastest[:end]),
            Timed(self._layers, shapes[end:], self._fastest[end:]),
        )
