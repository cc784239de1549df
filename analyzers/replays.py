"""The same requests replayed under several settings, on all cores.

    settings --> [ next one ] --> this process, one after another
                      |---------> a worker process for each further core

Whoever is free takes the next setting, so what a worker has not begun when it is needed is done here. Workers are
fresh interpreters that are handed the requests once; what they answer is what this process would have found, and
without them (one core, little to do, a worker that dies) everything is done here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Self

import numpy as np

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.replay import Arrivals, ReplayInput, ReplayResult, replay
from kvtune.analyzers.step_times import ASSUMED, StepTimes
from kvtune.tokenization.trace import Int32, Int64
from kvtune.tokenization.workers import Worker, start_workers, take_workers

Job = tuple[int, EngineConfig]
"""A setting and its place."""

Answer = tuple[int, ReplayResult | None]
"""A setting's place and its result; None where the worker ended over it."""

_WORTH_A_WORKER_S = 1.0
"""CPU seconds of replays that must lie ahead: a worker takes a third of one to start."""


@dataclass(frozen=True)
class ReplayTask:
    """What all settings have in common.

    Attributes:
        replica: int32[R], the cache that each request meets, with a pool of its own; None: one for all.
        arrivals, step_times, check, may_suffice: as `replay` takes them.
    """

    inputs: ReplayInput
    replica: Int32 | None = None
    arrivals: Arrivals = "sequential"
    step_times: StepTimes = ASSUMED
    check: bool = False
    may_suffice: bool = True

    def serve(self, pipe: Connection) -> None:
        """In a worker: one replay for each setting that comes through the pipe, until None comes."""
        while (config := pipe.recv()) is not None:
            pipe.send(self.run(config))

    def run(self, config: EngineConfig) -> ReplayResult:
        """The replay under one setting."""
        if self.replica is None:
            return self._replay(config, self.inputs)
        members = [np.flatnonzero(self.replica == number) for number in np.unique(self.replica)]
        return _join([self._replay(config, self.inputs.subset(indices)) for indices in members], members)

    def _replay(self, config: EngineConfig, inputs: ReplayInput) -> ReplayResult:
        return replay(
            config,
            inputs,
            arrivals=self.arrivals,
            step_times=self.step_times,
            check=self.check,
            may_suffice=self.may_suffice,
        )


def _join(results: Sequence[ReplayResult], members: Sequence[Int64]) -> ReplayResult:
    """One result of all requests: per-request arrays in trace order, counts summed; of `used_blocks` the most."""
    joined: dict[str, object] = {}
    for field in fields(ReplayResult):
        values = [getattr(result, field.name) for result in results]
        if field.name == "prefill_chunks":
            continue
        if isinstance(values[0], np.ndarray):
            joined[field.name] = _in_trace_order(values, members)
        elif isinstance(values[0], dict):
            joined[field.name] = {
                name: _in_trace_order([part[name] for part in values], members) for name in values[0]
            }
        elif isinstance(values[0], int | float):
            joined[field.name] = sum(values)
        else:
            joined[field.name] = values[0]
    refused = (
        int(indices[index])
        for indices, result in zip(members, results, strict=True)
        for index in result.refused
    )
    joined["refused"] = tuple(sorted(refused))
    chunks = [result.prefill_chunks.copy() for result in results]
    for indices, rows in zip(members, chunks, strict=True):
        rows[:, 0] = indices[rows[:, 0]]
    joined["prefill_chunks"] = np.concatenate(chunks)
    joined["used_blocks"] = max(result.used_blocks for result in results)
    return ReplayResult(**joined)  # type: ignore[arg-type]


def _in_trace_order(parts: Sequence[Int64], members: Sequence[Int64]) -> Int64:
    whole = np.zeros(sum(map(len, members)), dtype=parts[0].dtype)
    for indices, part in zip(members, parts, strict=True):
        whole[indices] = part
    return whole


class Replays:
    """Begins to replay when it is made, if that is worth workers; iterating does the rest and waits.

    A context manager: leaving it ends the workers. Results can be iterated over once.
    """

    def __init__(self, settings: Sequence[EngineConfig], task: ReplayTask, *, workers: int = 1) -> None:
        """`workers`: processes in all, this one included."""
        self._settings = settings
        self._task = task
        self._first: ReplayResult | None = None
        self._waiting = deque(range(len(settings)))
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._workers: list[Worker] = []
        if workers <= 1 or len(settings) <= 1:
            return
        self._workers = take_workers(workers - 1)
        if not self._workers:
            start = time.process_time()
            self._first = task.run(settings[self._waiting.popleft()])
            ahead = (time.process_time() - start) * len(self._waiting)
            if ahead > _WORTH_A_WORKER_S:
                self._workers = start_workers(min(workers - 1, len(self._waiting) - 1))
        for worker in self._workers:
            Thread(target=_feed, args=(worker, task, self._next, self._answers), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.end()

    def __iter__(self) -> Iterator[tuple[int, ReplayResult]]:
        """A setting's place and its result, in the order in which they are done."""
        left = len(self._settings)
        if self._first is not None:
            left -= 1
            yield 0, self._first
        for _ in range(left):
            job = self._next() if self._answers.empty() else None
            place, result = self._answers.get() if job is None else (job[0], None)
            yield place, result if result is not None else self._task.run(self._settings[place])

    def results(self, progress: Callable[[int, int], None]) -> list[ReplayResult]:
        """All results, in the order of the settings. `progress` is told how many there are, and will be."""
        found: dict[int, ReplayResult] = {}
        progress(0, len(self._settings))
        for place, result in self:
            found[place] = result
            progress(len(found), len(self._settings))
        return [found[place] for place in range(len(found))]

    def _next(self) -> Job | None:
        """A setting that nobody has begun; workers' threads ask, too."""
        try:
            place = self._waiting.popleft()
        except IndexError:
            return None
        return place, self._settings[place]


def _feed(
    worker: Worker, task: ReplayTask, following: Callable[[], Job | None], answers: SimpleQueue[Answer]
) -> None:
    """Hand a worker one setting after another, until none follows."""
    begun = None
    try:
        worker.begin(replace(task, inputs=replace(task.inputs, block_keys={})))
        while (job := following()) is not None:
            begun, config = job
            worker.pipe.send(config)
            answers.put((begun, worker.pipe.recv()))
            begun = None
    except (OSError, EOFError):
        pass  # the worker has ended: what it had begun is done by whoever waits for it
    finally:
        if begun is not None:
            answers.put((begun, None))
