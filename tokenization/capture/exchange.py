"""One request with its answer as raw bytes, and the bound on how many such bytes are held in memory.

Knows neither HTTP libraries nor what the bytes mean.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


class MemoryBudget:
    """A bound on captured bytes that are in memory: exchanges under way and those that wait for the disk.

    Shared by the event loop and the writer's thread. Nobody ever waits for it: what does not fit is not
    kept, so that a slow disk costs records, never a reply.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        return self._held

    def take(self, count: int) -> bool:
        """Reserves `count` bytes, or none at all and returns False."""
        with self._lock:
            if self._held + count > self.limit_bytes:
                return False
            self._held += count
            return True

    def give_back(self, count: int) -> None:
        with self._lock:
            self._held -= count


@dataclass(slots=True)
class Exchange:
    """What passed between a client and the server for one request.

    Attributes:
        path: the request's path, without its query (which may carry keys).
        arrival_s: seconds from the start of the capture to the request's head.
        body, answer: bytes as they passed; empty once `overflowed`.
        status: the server's status code, 0 while there is none.
        request_encoded, answer_encoded: compressed on the way, so the bytes cannot be read as they are.
        streamed: the answer is a server-sent event stream.
        ttft_s: seconds from `arrival_s` to the first byte of the answer's body.
        e2e_s: seconds from `arrival_s` to the end, whichever way it ended.
        complete: client and server both got to the end of the answer.
        overflowed: the memory budget was used up, the copy was given up.
    """

    path: str
    arrival_s: float
    body: bytearray = field(default_factory=bytearray)
    answer: bytearray = field(default_factory=bytearray)
    status: int = 0
    request_encoded: bool = False
    answer_encoded: bool = False
    streamed: bool = False
    ttft_s: float | None = None
    e2e_s: float = 0.0
    complete: bool = False
    overflowed: bool = False

    @property
    def held_bytes(self) -> int:
        return len(self.body) + len(self.answer)

    def keep(self, chunk: bytes, into: bytearray, budget: MemoryBudget) -> None:
        """Copies `chunk` into `body` or `answer`; past the budget the whole copy is given up."""
        if self.overflowed:
            return
        if budget.take(len(chunk)):
            into += chunk
            return
        self.overflowed = True
        budget.give_back(self.held_bytes)
        self.body.clear()
        self.answer.clear()
