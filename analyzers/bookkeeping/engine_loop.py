"""Steps without a clock: schedule, and hand outputs back as an engine core does, one batch or two in flight."""

from __future__ import annotations

from collections import deque

from kvtune.analyzers.bookkeeping.scheduler import AsyncScheduler, Scheduler
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.bookkeeping.step_plan import StepPlan

MOST_IDLE_STEPS = 50
"""Steps in a row that schedule nothing, until the first request counts as one that never gets further."""


class EngineLoop:
    """Drives a scheduler. `num_steps` counts calls of `schedule`, empty ones included."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.num_steps = 0
        self._depth = 2 if isinstance(scheduler, AsyncScheduler) else 1
        self._queue: deque[StepPlan] = deque()
        self._handed_back_work = False
        self._idle_steps = 0

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished or a batch is in flight."""
        return self.scheduler.has_requests or bool(self._queue)

    def step(self) -> tuple[StepPlan | None, list[Sequence]]:
        """Schedule once, if anything can be; hand the oldest batch back once enough are in flight.

        Returns the plan that was made, and the requests that finished.
        """
        plan = None
        self._handed_back_work = False
        if self.scheduler.has_requests:
            plan = self.scheduler.schedule()
            self.num_steps += 1
            self._idle_steps = 0 if plan.chunks else self._idle_steps + 1
            self._queue.append(plan)
            if plan.chunks and len(self._queue) < self._depth:
                return plan, []
        batch = self._queue.popleft()
        self._handed_back_work = bool(batch.chunks)
        return plan, self.scheduler.update(batch)

    def stuck(self, plan: StepPlan | None) -> Sequence | None:
        """The request that can never be admitted, if the last step shows that: nothing runs, and it does not fit.

        A step that handed back a batch with work shows nothing: a preempted request waits for its own output.
        """
        scheduler = self.scheduler
        if self._idle_steps > MOST_IDLE_STEPS:
            self._idle_steps = 0
            return next(iter([*scheduler.running, *scheduler.waiting]), None)
        if plan is None or plan.chunks or plan.preempted or scheduler.running:
            return None
        if self._handed_back_work or any(batch.chunks for batch in self._queue):
            return None
        return scheduler.waiting[0] if scheduler.waiting else None
