"""`Run`: one candidate, request by request, through scheduler and executor, with a clock beside them.

    arrivals --> add_request --> schedule --> execute --> clock --> update --> record
                     ^------------------------------------------------'

The order of requests is the trace's for every candidate. Without an executor the same loop is a rehearsal: the
bookkeeping alone, under the same clock. Knows plans and times; nothing about tensors.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvtune.analyzers.bookkeeping.block_pool import BlockPool
from kvtune.analyzers.bookkeeping.integrity import check_integrity
from kvtune.analyzers.bookkeeping.scheduler import AsyncScheduler, make_scheduler
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.bookkeeping.step_plan import StepPlan
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.profiles import profile_for
from kvtune.analyzers.step_times import StepShape
from kvtune.gpu_probe.engine.clocks import Clock
from kvtune.gpu_probe.engine.executor import Executor
from kvtune.gpu_probe.engine.hashing import HashChain
from kvtune.gpu_probe.engine.step import Int64
from kvtune.gpu_probe.engine.workload import Workload

Float64 = npt.NDArray[np.float64]
Arrivals = Literal["sequential", "trace"]
Progress = Callable[[int, int], None]
"""Requests done, requests in all."""


@dataclass
class RunRecord:
    """What a run did, per request (R) and in all. Tokens unless the name says otherwise; seconds on the run's clock.

    Attributes:
        hit_tokens: int64[R], found at the first admission. prefilled_tokens: prompt tokens computed, repeated ones
            after a preemption included. prefill_steps, preemptions, copies, evicted_blocks: int64[R], as the
            replay's.
        arrival, first_token, finished: float64[R], NaN where it did not happen. token_times: per request the times
            of its tokens.
        greedy: per request the most likely next tokens (only with an executor). digests: SHA-256 of the logits'
            bytes behind them (only in exact runs).
        hash_s: CPU seconds spent hashing. step_s, steps: times on this machine and shapes of all steps.
        host_s: seconds in scheduling and updating. num_blocks_used: ids that the pool handed out, null included.
        refused: requests whose prompt can never fit the pool. duration_s: from the first arrival to the end.
    """

    hit_tokens: Int64
    prefilled_tokens: Int64
    prefill_steps: Int64
    preemptions: Int64
    copies: Int64
    evicted_blocks: Int64
    arrival: Float64
    first_token: Float64
    finished: Float64
    token_times: list[list[float]]
    greedy: list[list[int]]
    digests: list[list[bytes]]
    copied_tokens: int = 0
    copied_bytes: int = 0
    hash_s: float = 0.0
    host_s: float = 0.0
    step_s: list[float] = field(default_factory=list)
    steps: list[StepShape] = field(default_factory=list)
    num_blocks_used: int = 0
    refused: tuple[int, ...] = ()
    duration_s: float = 0.0

    @classmethod
    def empty(cls, count: int) -> RunRecord:
        """Of a run of `count` requests that has not begun."""

        def zeros() -> Int64:
            return np.zeros(count, dtype=np.int64)

        def unknown() -> Float64:
            return np.full(count, np.nan)

        return cls(
            hit_tokens=zeros(),
            prefilled_tokens=zeros(),
            prefill_steps=zeros(),
            preemptions=zeros(),
            copies=zeros(),
            evicted_blocks=zeros(),
            arrival=unknown(),
            first_token=unknown(),
            finished=unknown(),
            token_times=[[] for _ in range(count)],
            greedy=[[] for _ in range(count)],
            digests=[[] for _ in range(count)],
        )


@dataclass(frozen=True)
class _InFlight:
    """A step that ran and was not handed back: its plan, what it sampled, and when it ended."""

    plan: StepPlan
    greedy: list[int]
    digests: list[bytes]
    ended: float


def _no_progress(done: int, total: int) -> None:
    """Progress that nobody watches."""


class Run:
    """One candidate's run; `run()` once."""

    def __init__(
        self,
        config: EngineConfig,
        workload: Workload,
        clock: Clock,
        executor: Executor | None,
        *,
        arrivals: Arrivals = "sequential",
        rate: float = 1.0,
        check: bool = False,
        hashing: bool = True,
        progress: Progress | None = None,
    ) -> None:
        self.config = config
        self.workload = workload
        self.clock = clock
        self.scheduler = make_scheduler(config, profile_for(config.version).profile)
        self.executor = executor
        self._arrivals = arrivals
        self._rate = rate
        self._check = check
        self._progress = progress or _no_progress
        unit = self.scheduler.sizes.hash_block_size
        self._chains = (
            [HashChain(unit) for _ in workload.tokens] if hashing and config.enable_prefix_caching else []
        )
        self.record = RunRecord.empty(len(workload))
        self._queue: deque[_InFlight] = deque()
        self._depth = 2 if isinstance(self.scheduler, AsyncScheduler) else 1
        self._refused: list[int] = []
        self._num_finished = 0
        self._busy_until = 0.0
        inputs = workload.inputs
        lookahead = self.scheduler.sizes.hash_lookahead_tokens
        self.sequences = [
            Sequence(index, path, prompt, output, lookahead=lookahead)
            for index, (path, prompt, output) in enumerate(
                zip(inputs.paths, inputs.prompt_tokens.tolist(), inputs.output_tokens.tolist(), strict=True)
            )
        ]

    def run(self) -> RunRecord:
        """All requests, to the end."""
        if self._arrivals == "sequential":
            for sequence in self.sequences:
                self._add(sequence, self.clock.now)
                while self._has_work:
                    self._step()
        else:
            self._run_by_arrival()
        return self._finish()

    @property
    def _has_work(self) -> bool:
        return self._can_schedule or bool(self._queue)

    @property
    def _can_schedule(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    def _run_by_arrival(self) -> None:
        times = self.workload.inputs.arrival
        assert times is not None
        due = (times / self._rate).tolist()
        place = 0
        while place < len(due) or self._has_work:
            if not self._has_work:
                self.clock.wait_until(due[place])
            while place < len(due) and due[place] <= self.clock.now:
                self._add(self.sequences[place], due[place])
                place += 1
            if self._has_work:
                self._step()

    def _add(self, sequence: Sequence, arrival: float) -> None:
        index = sequence.index
        self.record.arrival[index] = arrival
        self._hash(sequence, sequence.num_prompt_tokens)
        self.scheduler.add_request(sequence)

    def _hash(self, sequence: Sequence, known: int) -> None:
        if self._chains:
            chain = self._chains[sequence.index]
            before = chain.seconds
            chain.extend(self.workload.tokens[sequence.index], known)
            self.record.hash_s += chain.seconds - before
            self.clock.spend(chain.seconds - before)

    def _step(self) -> None:
        """Schedule and execute once, if anything can be; hand the oldest step back once enough are in flight."""
        if self._can_schedule:
            start = time.perf_counter()
            plan = self.scheduler.schedule()
            self.record.host_s += time.perf_counter() - start
            self._queue.append(self._execute(plan, start))
            if plan.chunks and len(self._queue) < self._depth:
                return
            if not (plan.chunks or plan.preempted or self.scheduler.running or len(self._queue) > 1):
                self._refuse_first()
        self._hand_back(self._queue.popleft())
        if self._check:
            check_integrity(self.scheduler, self.sequences)

    def _execute(self, plan: StepPlan, start: float) -> _InFlight:
        greedy: list[int] = []
        digests: list[bytes] = []
        if plan.chunks:
            if self.executor is not None:
                executed = self.executor.run(plan, self.scheduler)
                self.record.copied_tokens += executed.copied_tokens
                self.record.copied_bytes += executed.copied_bytes
                if executed.logits is not None:
                    greedy = executed.logits.argmax(-1).tolist()
                    digests = executed.digests()
            seconds = time.perf_counter() - start
            shape = StepShape.of(plan.chunks)
            self._count_prefilled(plan)
            self._busy_until = max(self._busy_until, self.clock.now) + self.clock.step(shape, seconds)
            self.record.steps.append(shape)
            self.record.step_s.append(seconds)
        return _InFlight(plan, greedy, digests, max(self._busy_until, self.clock.now))

    def _hand_back(self, step: _InFlight) -> None:
        if step.plan.chunks:
            self.clock.wait_until(step.ended)
        start = time.perf_counter()
        finished = self.scheduler.update(step.plan)
        self.record.host_s += time.perf_counter() - start
        sampled = [chunk.sequence for chunk in step.plan.chunks if chunk.samples]
        for place, sequence in enumerate(sampled):
            self._token(sequence, step.ended)
            if step.greedy:
                self.record.greedy[sequence.index].append(step.greedy[place])
            if step.digests:
                self.record.digests[sequence.index].append(step.digests[place])
        for sequence in finished:
            self.record.finished[sequence.index] = step.ended
            self._num_finished += 1
            self._progress(self._num_finished, len(self.sequences))

    def _token(self, sequence: Sequence, now: float) -> None:
        index = sequence.index
        if np.isnan(self.record.first_token[index]):
            self.record.first_token[index] = now
        self.record.token_times[index].append(now)
        self._hash(sequence, sequence.num_tokens)

    def _count_prefilled(self, plan: StepPlan) -> None:
        for chunk in plan.chunks:
            end = min(chunk.start + chunk.num_tokens, chunk.sequence.num_prompt_tokens)
            self.record.prefilled_tokens[chunk.sequence.index] += max(0, end - chunk.start)

    def _refuse_first(self) -> None:
        """Nothing runs and the first request in the queue does not fit: it never will."""
        sequence = self.scheduler.waiting[0]
        self.scheduler.refuse(sequence)
        self._refused.append(sequence.index)

    def _finish(self) -> RunRecord:
        record = self.record
        for name, attribute in (
            ("hit_tokens", "first_hit"),
            ("prefill_steps", "num_prefill_steps"),
            ("preemptions", "num_preemptions"),
            ("copies", "num_copies"),
            ("evicted_blocks", "num_evicted_blocks"),
        ):
            values = [max(0, getattr(sequence, attribute)) for sequence in self.sequences]
            setattr(record, name, np.array(values, dtype=np.int64))
        record.refused = tuple(self._refused)
        pool = self.scheduler.coordinator.pool
        assert isinstance(pool, BlockPool)  # tensors need to know which block is which
        record.num_blocks_used = pool.num_used_ids + 1
        began = record.arrival[~np.isnan(record.arrival)]
        record.duration_s = self.clock.now - float(began.min()) if len(began) else 0.0
        return record
