"""Processes beside this one that do one task after another, each answering through a pipe of its own.

Knows processes and signals; what a task is, and how it talks, is for who begins it. A worker takes a third of a
second to start, so `standby` starts some before there is anything to do.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from typing import Any, Protocol


class Task(Protocol):
    """What a worker is handed."""

    def serve(self, pipe: Connection) -> None:
        """In the worker: answer what comes through the pipe, until None comes."""


class Worker:
    """A fresh interpreter that waits for tasks. `pipe` leads to whatever it does."""

    def __init__(self, imports: Sequence[str] = ()) -> None:
        """`imports`: modules that its tasks will need."""
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._is_up = False
        self._process = context.Process(target=_serve, args=(theirs, tuple(imports)), daemon=True)
        with _interrupts_held_back():
            self._process.start()
        theirs.close()

    def is_up(self) -> bool:
        """Whether it has started; until then what is sent stays in the pipe, which does not hold much."""
        if not self._is_up and self.pipe.poll():
            self._wait()
        return self._is_up

    def begin(self, task: Task) -> None:
        """Hand it a task, once it has started. Raises OSError or EOFError where it has ended."""
        self._wait()
        self.pipe.send(task)

    def begin_once_up(self, task: Task) -> None:
        """Hand it a small task without waiting for it. Raises OSError where it has ended."""
        self.pipe.send(task)

    def answer(self) -> Any:
        """What comes next from it, once it has started. Raises OSError or EOFError where it has ended."""
        self._wait()
        return self.pipe.recv()

    def _wait(self) -> None:
        if not self._is_up:
            self._is_up = self.pipe.recv()

    def end(self) -> None:
        """Stop it, whatever it does."""
        self._process.terminate()
        self._process.join()


def start_workers(count: int, imports: Sequence[str] = ()) -> list[Worker]:
    """So many workers, or as many as the system allows."""
    started: list[Worker] = []
    for _ in range(count):
        try:
            started.append(Worker(imports))
        except OSError:  # no more processes, or files
            break
    return started


@contextmanager
def standby(count: int, imports: Sequence[str]) -> Iterator[None]:
    """So many workers start now and wait for whoever takes them; left over ones end."""
    _standing_by.extend(start_workers(count, imports))
    try:
        yield
    finally:
        while _standing_by:
            _standing_by.pop().end()


def take_workers(most: int | None = None) -> list[Worker]:
    """Those that stand by, or `most` of them; whoever takes them ends them or hands them back."""
    count = len(_standing_by) if most is None else min(len(_standing_by), most)
    return [_standing_by.pop() for _ in range(count)]


def hand_back(worker: Worker) -> None:
    """The worker stands by again: its task has been told to end."""
    _standing_by.append(worker)


_standing_by: list[Worker] = []


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Ctrl-C reaches a worker, too; one that is still importing would tell of it, so it begins with it blocked."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else `start` does, and lifts the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, imports: Sequence[str]) -> None:
    """What a worker does until the other end is closed. An interrupt ends it without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        for name in imports:
            import_module(name)
        pipe.send(True)
        while True:
            task: Task = pipe.recv()
            task.serve(pipe)
    except Exception:
        return
