"""Replay: requests through the engine's bookkeeping, and what the engine would have done with each.

No model runs and no token is looked at: prompts are lengths and prefix names. `arrivals="sequential"` lets each
request finish before the next is added; `arrivals="trace"` adds requests by their timestamps, by a model of step
times.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvtune.analyzers.arrivals import TimedRun
from kvtune.analyzers.bookkeeping.engine_loop import EngineLoop
from kvtune.analyzers.bookkeeping.integrity import check_integrity
from kvtune.analyzers.bookkeeping.recorder import EngineLog, LookupRecord, Recorder
from kvtune.analyzers.bookkeeping.roomy_pool import PoolTooSmallError
from kvtune.analyzers.bookkeeping.scheduler import Scheduler, make_scheduler
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.layout import EngineConfig, Kind
from kvtune.analyzers.prefix_tree import PrefixPath
from kvtune.analyzers.profiles import profile_for
from kvtune.analyzers.resolver import ResolvedSizes, resolve_sizes
from kvtune.analyzers.step_times import ASSUMED, StepTimes
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.trace import Float64, Int64

Arrivals = Literal["sequential", "trace"]


@dataclass(frozen=True)
class ReplayInput:
    """R requests in replay order. Lengths in tokens.

    Attributes:
        paths: prefix names of each prompt, followed by those of its cached output where that is known. Generated
            tokens beyond a path belong to their request alone.
        prompt_tokens: int64[R]. output_tokens: int64[R], generated tokens, at least 1.
        arrival: float64[R], seconds, ascending; needed for `arrivals="trace"`.
        ids: names for messages.
    """

    paths: Seq[PrefixPath]
    prompt_tokens: Int64
    output_tokens: Int64
    arrival: Float64 | None = None
    ids: Seq[str] = ()
    block_keys: dict[int, list[dict[int, list[int]]]] = field(default_factory=dict, compare=False, repr=False)
    """Names of whole blocks by lookahead and request, found by one replay and used again by the next."""

    def subset(self, indices: Int64) -> ReplayInput:
        """Only these requests, in their order."""
        return ReplayInput(
            paths=[self.paths[index] for index in indices],
            prompt_tokens=self.prompt_tokens[indices],
            output_tokens=self.output_tokens[indices],
            arrival=None if self.arrival is None else self.arrival[indices],
            ids=[self.ids[index] for index in indices] if self.ids else (),
        )


@dataclass(frozen=True)
class Limits:
    """How far a request's hit would have got with some limits lifted, int64[R] tokens; each at least the next.

    Attributes:
        within_windows: what sliding windows and local chunks allow by themselves.
        ever: what every group ever had of the prefix, from earlier requests, gone or not there yet.
        without_evictions: what was there at admission or had been evicted. without_drop: what was there.
        seen: bool[R], whether the request was looked up and ran; elsewhere the others are 0.
    """

    within_windows: Int64
    ever: Int64
    without_evictions: Int64
    without_drop: Int64
    seen: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ReplayResult:
    """What happened, per request (int64[R]) and in all. Tokens unless the name says otherwise.

    Attributes:
        hit_tokens, junction: what the first admission found: the reconciled hit, and the longest single group's
            hit where that is longer, else 0. Both 0 for a refused request.
        prefill_steps: chunks that began inside the prompt, repeated ones after a preemption included.
        preemptions, copies, evicted_blocks, new_blocks: of this request's own chunks; copies are copy-on-write
            block copies, in all groups.
        lookup_probes: positions that the engine asks its prefix store for, one per position and set of like groups.
        refused: requests that can never fit the pool.
        num_steps: scheduler steps that ran something. num_keys: prefix keys in the pool at the end. used_blocks:
            different blocks that were ever handed out; a pool of as many and the null block would have done.
        sizes: what the engine resolved. prefill_chunks: int64[C, 3], every prefill step: request,
            tokens computed before it, and tokens that it computes.
        first_token_s, finished_s: float64[R], seconds on the trace's clock, NaN where it did not happen; only with
            `arrivals="trace"`, as is what follows. added_prefill_s: float64[R], what each request's prefill adds to the
            steps that it runs in. busy_s: seconds in which a step ran. limits, log: only with `record`.
        most_pinned, pinned_at_end: blocks that nobody else could have had because the request ran: the most at any
            moment, copies under way included, and those that it gave back at its end, by kind of group. 0 where it
            did not run. Only with `arrivals="sequential"`: overlapping requests pin blocks together.
    """

    hit_tokens: Int64
    junction: Int64
    prefill_steps: Int64
    preemptions: Int64
    copies: Int64
    evicted_blocks: Int64
    new_blocks: Int64
    lookup_probes: Int64
    refused: tuple[int, ...]
    num_steps: int
    num_keys: int
    used_blocks: int
    sizes: ResolvedSizes
    prefill_chunks: Int64
    first_token_s: Float64 | None = None
    finished_s: Float64 | None = None
    added_prefill_s: Float64 | None = None
    busy_s: float | None = None
    limits: Limits | None = None
    log: EngineLog | None = None
    most_pinned: Int64 | None = None
    pinned_at_end: dict[Kind, Int64] = field(default_factory=dict)


def replay(
    config: EngineConfig,
    inputs: ReplayInput,
    *,
    arrivals: Arrivals = "sequential",
    step_times: StepTimes = ASSUMED,
    record: bool = False,
    check: bool = False,
    may_suffice: bool = True,
) -> ReplayResult:
    """Run all requests through one engine, with its `scheduling` (real servers: `async`).

    Args:
        step_times: what steps take, with `arrivals="trace"`.
        record: keep `limits` and `log`, for losses and explanations.
        check: verify the conservation laws after every request; slow.
        may_suffice: False where the pool is known to run out: saves finding that out.

    Raises:
        EngineRefusal: the engine would not start with this configuration.
        UnknownReleaseError: for a release without a match unit.
        UnusableInputError: `arrivals="trace"` for requests without timestamps.
    """
    if arrivals == "trace" and inputs.arrival is None:
        raise UnusableInputError(
            "not every request has a timestamp",
            field="--arrivals",
            found="trace",
            way_out="use --arrivals sequential",
        )
    profile = profile_for(config.version).profile
    sizes = resolve_sizes(config, profile)
    if may_suffice and not (check or record):
        # A pool that never runs out needs no block identities; one that does shows it early.
        try:
            return _replay(make_scheduler(config, profile, sizes, roomy=True), inputs, arrivals, step_times)
        except PoolTooSmallError:
            pass
    scheduler = make_scheduler(config, profile, sizes)
    if record:
        scheduler.recorder = Recorder(scheduler.coordinator, profile)
    return _replay(scheduler, inputs, arrivals, step_times, check)


def _replay(
    scheduler: Scheduler, inputs: ReplayInput, arrivals: Arrivals, step_times: StepTimes, check: bool = False
) -> ReplayResult:
    lookahead = scheduler.sizes.hash_lookahead_tokens
    known = inputs.block_keys.setdefault(lookahead, [{} for _ in inputs.paths])
    sequences = [
        Sequence(index, path, prompt, output, lookahead=lookahead, block_keys=keys)
        for index, (path, prompt, output, keys) in enumerate(
            zip(
                inputs.paths, inputs.prompt_tokens.tolist(), inputs.output_tokens.tolist(), known, strict=True
            )
        )
    ]
    run: _SequentialRun | TimedRun = _SequentialRun(scheduler, check)
    if arrivals == "trace":
        assert inputs.arrival is not None
        run = TimedRun(scheduler, step_times, inputs.arrival, check=check)
    with _collector_paused():
        run.run(sequences)
    return _result(run, sequences)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A replay makes many small objects and hardly a cycle: looking for cycles meanwhile only costs."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _SequentialRun:
    """Each request finishes before the next one is added."""

    def __init__(self, scheduler: Scheduler, check: bool) -> None:
        self.scheduler = scheduler
        self.refused: list[int] = []
        self.num_steps = 0
        self._check = check

    def run(self, sequences: Seq[Sequence]) -> None:
        one_at_a_time = type(self.scheduler) is Scheduler
        for sequence in sequences:
            self.scheduler.add_request(sequence)
            if one_at_a_time:
                self._finish(sequence)
            else:
                self._finish_overlapped(sequence)
            if self._check:
                check_integrity(self.scheduler, [sequence])

    def _finish(self, sequence: Sequence) -> None:
        scheduler = self.scheduler
        schedule, update = scheduler.schedule, scheduler.update
        decodes = sequence.max_output_tokens > 1
        while not sequence.finished:
            plan = schedule()
            if plan.chunks:
                self.num_steps += 1
                update(plan)
                if decodes and (quiet := scheduler.quiet_decode_steps()):
                    scheduler.pass_decode_steps(quiet)
                    self.num_steps += quiet
            elif not plan.preempted:
                self._refuse(sequence)
                return

    def _finish_overlapped(self, sequence: Sequence) -> None:
        loop = EngineLoop(self.scheduler)
        while loop.has_work:
            plan, _ = loop.step()
            self.num_steps += plan is not None and bool(plan.chunks)
            if loop.stuck(plan) is not None:
                self._refuse(sequence)
                return

    def _refuse(self, sequence: Sequence) -> None:
        """The request waits alone before an empty pool and does not fit."""
        self.scheduler.refuse(sequence)
        self.refused.append(sequence.index)


_COUNTS = attrgetter(
    "first_hit",
    "first_junction",
    "num_prefill_steps",
    "num_preemptions",
    "num_copies",
    "num_evicted_blocks",
    "num_new_blocks",
    "num_probes",
    "most_pinned",
)


def _result(run: _SequentialRun | TimedRun, sequences: Seq[Sequence]) -> ReplayResult:
    recorder = run.scheduler.recorder
    counts = np.array(list(map(_COUNTS, sequences)), dtype=np.int64).reshape(-1, 9).T.copy()
    hits, junction, prefill_steps, preemptions, copies, evicted, new, probes, most_pinned = counts
    alone = not isinstance(run, TimedRun)
    return ReplayResult(
        hit_tokens=np.maximum(hits, 0),
        junction=junction,
        prefill_steps=prefill_steps,
        preemptions=preemptions,
        copies=copies,
        evicted_blocks=evicted,
        new_blocks=new,
        lookup_probes=probes,
        refused=tuple(run.refused),
        num_steps=run.num_steps,
        num_keys=run.scheduler.coordinator.num_keys,
        used_blocks=run.scheduler.coordinator.pool.num_used_ids,
        sizes=run.scheduler.sizes,
        prefill_chunks=np.array(run.scheduler.prefill_chunks, dtype=np.int64).reshape(-1, 3),
        first_token_s=run.first_token_s if isinstance(run, TimedRun) else None,
        finished_s=run.finished_s if isinstance(run, TimedRun) else None,
        added_prefill_s=run.prefill_s if isinstance(run, TimedRun) else None,
        busy_s=run.busy_s if isinstance(run, TimedRun) else None,
        limits=None if recorder is None else _limits(recorder, sequences),
        log=None if recorder is None else recorder.log,
        most_pinned=most_pinned if alone else None,
        pinned_at_end=_pinned_at_end(run.scheduler, sequences) if alone else {},
    )


def _pinned_at_end(scheduler: Scheduler, sequences: Seq[Sequence]) -> dict[Kind, Int64]:
    managers = scheduler.coordinator.managers
    nothing = [0] * len(managers)
    rows = [sequence.pinned_at_end or nothing for sequence in sequences]
    by_manager = np.array(rows, dtype=np.int64).reshape(len(rows), len(managers))
    pinned: dict[Kind, Int64] = {}
    for place, manager in enumerate(managers):
        kind = manager.group.kind
        pinned[kind] = pinned.get(kind, 0) + by_manager[:, place]
    return pinned


def _limits(recorder: Recorder, sequences: Seq[Sequence]) -> Limits:
    lookups = recorder.log.lookups
    nothing = LookupRecord(0, 0, 0, (), 0, 0, 0)
    seen = [sequence.finished and sequence.index in lookups for sequence in sequences]
    found = [
        lookups[sequence.index] if looked_up else nothing
        for sequence, looked_up in zip(sequences, seen, strict=True)
    ]
    unevicted = np.array([lookup.without_evictions for lookup in found], dtype=np.int64)
    ever = np.array(recorder.once_all_earlier_had_run(sequences), dtype=np.int64)
    return Limits(
        within_windows=np.array([lookup.within_windows for lookup in found], dtype=np.int64),
        ever=np.maximum(ever, unevicted),
        without_evictions=unevicted,
        without_drop=np.array([lookup.without_drop for lookup in found], dtype=np.int64),
        seen=np.array(seen, dtype=bool),
    )
