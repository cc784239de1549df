"""Requests by their timestamps: the engine's steps take the time that step times say, and overlap.

With async scheduling a step is planned while the one before it runs, so it sees the requests that had arrived when
that one began, and outputs one step late:

    step n    |-------- runs --------|
    plan n+1   ^ when n begins        |-------- runs --------|
    output n                          ^ handed back when n ends, n+2 is planned

Steps that only decode and touch no block boundary change nothing but counters; a run of them is taken at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq

import numpy as np

from kvtune.analyzers.bookkeeping.integrity import check_integrity
from kvtune.analyzers.bookkeeping.scheduler import AsyncScheduler, Scheduler
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.bookkeeping.step_plan import StepPlan
from kvtune.analyzers.step_times import StepShape, StepTimes
from kvtune.tokenization.trace import Float64


class TimedRun:
    """One engine and its clock.

    Attributes:
        refused: requests that can never fit. num_steps: steps that ran something.
        first_token_s, finished_s: float64[R], on the trace's clock; NaN where it did not happen.
        prefill_s: float64[R], seconds that each request's prefill chunks add to the steps that they run in: beside
            decoding requests a step would have run anyway.
        busy_s: seconds in which a step ran.
    """

    def __init__(
        self, scheduler: Scheduler, step_times: StepTimes, arrival: Float64, *, check: bool = False
    ) -> None:
        self.scheduler = scheduler
        self.refused: list[int] = []
        self.num_steps = 0
        self.first_token_s = np.full(len(arrival), np.nan)
        self.finished_s = np.full(len(arrival), np.nan)
        self.prefill_s = np.zeros(len(arrival))
        self.busy_s = 0.0
        self._step_times = step_times
        self._arrival = arrival.tolist()
        self._check = check
        self._depth = 2 if isinstance(scheduler, AsyncScheduler) else 1
        self._queue: deque[tuple[StepPlan, float]] = deque()
        self._now = 0.0
        self._busy_until = 0.0

    def run(self, sequences: Seq[Sequence]) -> None:
        """Run them all; they are in order of arrival."""
        scheduler, arrival = self.scheduler, self._arrival
        upcoming = 0
        while True:
            while upcoming < len(sequences) and arrival[upcoming] <= self._now:
                scheduler.add_request(sequences[upcoming])
                upcoming += 1
            if scheduler.running or scheduler.waiting or self._queue:
                self._step()
                if not scheduler.waiting:
                    self._skip_decode(arrival[upcoming] if upcoming < len(sequences) else None)
            elif upcoming < len(sequences):
                self._now = max(self._now, arrival[upcoming])
            else:
                return

    def _step(self) -> None:
        """Plan a step if there is something to plan; hand the oldest one's output back once enough are under way."""
        scheduler = self.scheduler
        if scheduler.running or scheduler.waiting:
            plan = scheduler.schedule()
            if plan.chunks:
                self.num_steps += 1
                self._busy_until = max(self._busy_until, self._now) + self._run_for(plan)
                self._queue.append((plan, self._busy_until))
                if len(self._queue) < self._depth:
                    return
            elif not (self._queue or scheduler.running or plan.preempted):
                self._refuse(scheduler.waiting[0])
                return
        if self._queue:
            plan, self._now = self._queue.popleft()
            for sequence in scheduler.update(plan):
                self.finished_s[sequence.index] = self._now
            for chunk in plan.chunks:
                if chunk.samples and chunk.start < chunk.sequence.num_prompt_tokens:
                    index = chunk.sequence.index
                    if np.isnan(self.first_token_s[index]):
                        self.first_token_s[index] = self._now
            if self._check:
                check_integrity(scheduler, scheduler.running)

    def _run_for(self, plan: StepPlan) -> float:
        """Seconds of a step; what prefill adds to it is booked on its requests, by their tokens."""
        shape = StepShape.of(plan.chunks)
        seconds = self._step_times.step_s(shape)
        self.busy_s += seconds
        if shape.prefill_requests:
            decoding = StepShape(0, 0, 0, shape.decode_tokens, shape.decode_context)
            added = max(0.0, seconds - self._step_times.step_s(decoding)) / shape.prefill_tokens
            for chunk in plan.chunks:
                if chunk.start < chunk.sequence.num_prompt_tokens:
                    self.prefill_s[chunk.sequence.index] += added * chunk.num_tokens
        return seconds

    def _skip_decode(self, next_arrival: float | None) -> None:
        """Take a run of plain decode steps at once: none begins a block, ends a request or meets an arrival."""
        steps = self.scheduler.quiet_decode_steps()
        if steps < 2 or len(self._queue) != self._depth - 1:
            return
        running = self.scheduler.running
        context = sum(sequence.num_computed_tokens for sequence in running)
        if next_arrival is not None:
            steps = min(steps, self._steps_before(next_arrival, steps, len(running), context))
            if steps < 1:
                return
        seconds = self._step_times.decode_s(steps, len(running), context)
        self.num_steps += steps
        self.busy_s += seconds
        if self._queue:
            # The step under way is the same, `steps` later; the clock stands where it began.
            plan, end = self._queue.popleft()
            last = self._step_times.decode_s(1, len(running), context + len(running) * (steps - 1))
            self._now = end + seconds - last
            self._busy_until = end + seconds
            for chunk in plan.chunks:
                chunk.start += steps
            self._queue.append((plan, self._busy_until))
        else:
            self._now += seconds
            self._busy_until = self._now
        self.scheduler.pass_decode_steps(steps)

    def _steps_before(self, time_s: float, most: int, sequences: int, context: int) -> int:
        """How many steps can pass before one is planned at or after `time_s`."""
        base = self._queue[0][1] if self._queue else self._now
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            # With a step under way the clock lags one step behind what runs.
            passed = self._step_times.decode_s(middle - len(self._queue), sequences, context)
            if base + passed < time_s:
                low = middle
            else:
                high = middle - 1
        return low

    def _refuse(self, sequence: Sequence) -> None:
        self.scheduler.refuse(sequence)
        self.refused.append(sequence.index)
