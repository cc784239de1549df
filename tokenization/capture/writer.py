"""Writes captured exchanges on a thread of its own, so that the disk's pace is nobody else's.

The file grows by whole gzip members (plain lines where the name doesn't end in .gz): whatever happens to
the process, all that was flushed stays readable, and what a failed write left behind is cut off again.
"""

from __future__ import annotations

import gzip
import os
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kvtune.tokenization.capture.conversations import Conversations
from kvtune.tokenization.capture.exchange import Exchange, MemoryBudget
from kvtune.tokenization.capture.record import Unrecordable, to_line
from kvtune.tokenization.errors import UnusableInputError

_MEMBER_BYTES = 1 << 20
_LINGER_S = 1.0
_RETRY_S = 1.0
_GZIP_LEVEL = 6

LOST_TO_MEMORY = "memory bound reached"
LOST_TO_DISK = "could not be written"


@dataclass
class CaptureCounts:
    """What became of the requests to recorded endpoints.

    Attributes:
        written: lines in the file, `incomplete` of them of answers that were broken off, `unread_answers`
            with `response` null because the answer's bytes were not what the endpoint should give.
        not_recorded: by reason: requests that belong in no trace (the server refused them, say).
        lost: by reason: requests that belong in the trace and are not in it.
        passed_through: requests to endpoints that are not recorded.
    """

    written: int = 0
    incomplete: int = 0
    unread_answers: int = 0
    passed_through: int = 0
    not_recorded: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)


class TraceWriter:
    """Takes finished exchanges without ever blocking and appends them to a new file.

    Args:
        path: the trace to write; created with mode 0600, since it holds prompts.
        budget: the memory that exchanges were taken from; given back once they are on disk.
        warn: told once for each kind of trouble, on the writer's thread.
        force: replace an existing file.

    Raises:
        UnusableInputError: the file exists and `force` is not set, or it cannot be created.
    """

    def __init__(
        self, path: Path, budget: MemoryBudget, warn: Callable[[str], None], *, force: bool = False
    ) -> None:
        self.counts = CaptureCounts()
        self._path = path
        self._budget = budget
        self._warn = warn
        self._descriptor = _create(path, force=force)
        self._size = 0
        self._conversations = Conversations(secrets.token_hex(4))
        self._queue: deque[Exchange] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._warned: set[str] = set()
        self._lines = bytearray()
        self._batch = CaptureCounts()
        self._batch_held = 0
        self._thread = threading.Thread(target=self._run, name="kvtune-capture-writer", daemon=True)
        self._thread.start()

    def put(self, exchange: Exchange) -> None:
        """Hands an exchange over; never waits for the disk."""
        with self._wake:
            self._queue.append(exchange)
            self._wake.notify()

    def close(self) -> CaptureCounts:
        """Writes what is left, with one last attempt where the disk refuses, and closes the file."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()
        os.close(self._descriptor)
        return self.counts

    def _run(self) -> None:
        flush_at = 0.0
        while True:
            exchange = self._next(flush_at if self._lines else None)
            if exchange is not None:
                if not self._lines:
                    flush_at = time.monotonic() + _LINGER_S
                self._add(exchange)
            ending = exchange is None and self._closing
            due = ending or len(self._lines) >= _MEMBER_BYTES or time.monotonic() >= flush_at
            if self._lines and due and not self._flush():
                self._lose_batch()
            if ending:
                return

    def _next(self, deadline: float | None) -> Exchange | None:
        """The next exchange; None at the deadline or when closing with nothing left."""
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        with self._wake:
            self._wake.wait_for(lambda: self._queue or self._closing, timeout)
            return self._queue.popleft() if self._queue else None

    def _add(self, exchange: Exchange) -> None:
        try:
            line, understood = to_line(exchange, self._conversations)
        except Unrecordable as verdict:
            if verdict.reason == LOST_TO_MEMORY:
                self.counts.lost[LOST_TO_MEMORY] += 1
                self._warn_once(
                    f"{self._budget.limit_bytes} bytes of captured requests are waiting for the disk or "
                    "under way: what does not fit is passed through and not recorded"
                )
            else:
                self.counts.not_recorded[verdict.reason] += 1
            self._budget.give_back(exchange.held_bytes)
            return
        except Exception as bug:  # it may cost this record, never those that follow
            self.counts.lost[f"internal error ({type(bug).__name__})"] += 1
            self._warn_once(f"internal error ({type(bug).__name__}) on a record: please report")
            self._budget.give_back(exchange.held_bytes)
            return
        self._lines += line
        self._batch.written += 1
        self._batch.incomplete += not exchange.complete
        self._batch.unread_answers += not understood
        self._batch_held += exchange.held_bytes

    def _flush(self) -> bool:
        """Appends the batch as one member, trying again while the disk refuses and the capture goes on."""
        data = gzip.compress(self._lines, _GZIP_LEVEL) if self._path.suffix == ".gz" else bytes(self._lines)
        while True:
            last = self._closing  # the last attempt begins after the capture's end
            if self._append(data):
                break
            if last:
                return False
            with self._wake:
                self._wake.wait_for(lambda: self._closing, _RETRY_S)
        self.counts.written += self._batch.written
        self.counts.incomplete += self._batch.incomplete
        self.counts.unread_answers += self._batch.unread_answers
        self._end_batch()
        return True

    def _append(self, data: bytes) -> bool:
        """All of `data` at the end of the file, or nothing."""
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._descriptor, memoryview(data)[done:], self._size + done)
        except OSError as error:
            with suppress(OSError):  # the next attempt writes over it in any case
                os.ftruncate(self._descriptor, self._size)
            self._warn_once(f"{self._path}: {error.strerror}; trying again until the capture ends")
            return False
        self._size += len(data)
        return True

    def _lose_batch(self) -> None:
        self.counts.lost[LOST_TO_DISK] += self._batch.written
        self._end_batch()

    def _end_batch(self) -> None:
        self._budget.give_back(self._batch_held)
        self._batch, self._batch_held = CaptureCounts(), 0
        self._lines.clear()

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)


def _create(path: Path, *, force: bool) -> int:
    if force:
        path.unlink(missing_ok=True)
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UnusableInputError(
            "the file exists", where=str(path), way_out="name another or add --force"
        ) from None
    except OSError as error:
        raise UnusableInputError(
            "the trace cannot be created",
            where=str(path),
            found=error.strerror,
            wanted="a writable folder",
            way_out="name another file with -o",
        ) from None
