"""Requests on the wire: one after another, or by their timestamps whatever the server does; what came back, and when.

Knows clocks and answers; nothing about caches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kvtune.gpu_probe.live.answer import Answer
from kvtune.gpu_probe.live.client import LiveClient, RefusedRequestError
from kvtune.gpu_probe.live.counters import Expected
from kvtune.gpu_probe.live.requests import Bodies
from kvtune.tokenization.errors import MissingDependencyError
from kvtune.tokenization.trace import Float64, Int64

LATE_S = 0.005
"""A request that leaves later than this after its time was held up by this client, not by the server."""
MOST_LATE = 0.01
"""Share of late requests above which an open-loop run says nothing about the server."""

Progress = Callable[[int, int], None]


@dataclass
class Run:
    """One run over R requests.

    Attributes:
        answers: in request order; None where the server refused the request.
        refused: (request, kind of refusal).
        late: requests that this client sent late (open loop only). wall_s: first send to last answer.
    """

    answers: list[Answer | None]
    refused: list[tuple[int, str]] = field(default_factory=list)
    late: int = 0
    wall_s: float = 0.0

    @property
    def void(self) -> bool:
        """Whether too many requests left late."""
        return self.late > MOST_LATE * len(self.answers)

    def cached_tokens(self) -> Int64:
        """int64[R]; -1 for a refused request. Releases before 0.24 leave out a zero."""
        return self._column(lambda answer: answer.cached_tokens or 0, -1)

    def prompt_tokens(self) -> Int64:
        """int64[R], the server's own count; -1 for a refused request."""
        return self._column(lambda answer: -1 if answer.prompt_tokens is None else answer.prompt_tokens, -1)

    def expected(self) -> Expected:
        """What the answers say that the counters must show."""
        answers = [answer for answer in self.answers if answer is not None]
        return Expected(
            requests=len(answers),
            prompt_tokens=sum(answer.prompt_tokens or 0 for answer in answers),
            cached_tokens=sum(answer.cached_tokens or 0 for answer in answers),
            completion_tokens=sum(answer.completion_tokens or 0 for answer in answers),
        )

    def _column(self, value: Callable[[Answer], int], missing: int) -> Int64:
        return np.array(
            [missing if answer is None else value(answer) for answer in self.answers], dtype=np.int64
        )


async def send_in_turn(client: LiveClient, bodies: Bodies, progress: Progress) -> Run:
    """Each request once the one before has ended.

    Raises:
        MissingDependencyError: the server fails; what was measured says nothing without the rest.
    """
    run = Run([None] * len(bodies))
    begin = time.perf_counter()
    for index in range(len(bodies)):
        await _send(client, bodies.path, bodies.body(index), index, run)
        progress(index + 1, len(bodies))
    run.wall_s = time.perf_counter() - begin
    _check_answers(run)
    return run


async def send_by_time(client: LiveClient, bodies: Bodies, arrival: Float64, progress: Progress) -> Run:
    """Open loop: each request at its own time, however many are under way.

    Args:
        arrival: float64[R], seconds, ascending.

    Raises:
        MissingDependencyError: as `send_in_turn`.
    """
    run = Run([None] * len(bodies))
    done = 0
    begin = time.perf_counter()

    async def one(index: int, body: bytes) -> None:
        nonlocal done
        await _send(client, bodies.path, body, index, run)
        done += 1
        progress(done, len(bodies))

    try:
        async with asyncio.TaskGroup() as tasks:
            for index, offset in enumerate((arrival - arrival[0]).tolist()):
                body = bodies.body(index)  # made before its time, so that making it delays nobody
                await asyncio.sleep(max(0.0, begin + offset - time.perf_counter()))
                run.late += time.perf_counter() - (begin + offset) > LATE_S
                tasks.create_task(one(index, body))
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    run.wall_s = time.perf_counter() - begin
    _check_answers(run)
    return run


async def _send(client: LiveClient, path: str, body: bytes, index: int, run: Run) -> None:
    try:
        run.answers[index] = await client.complete(path, body)
    except RefusedRequestError as error:
        run.refused.append((index, str(error)))


def _check_answers(run: Run) -> None:
    answers = [answer for answer in run.answers if answer is not None]
    if not answers and run.refused:
        raise MissingDependencyError("the server refuses every request", found=run.refused[0][1])
    if answers and all(answer.prompt_tokens is None for answer in answers):
        raise MissingDependencyError(
            "the answers carry no usage", wanted="a vLLM server that knows stream_options.include_usage"
        )
