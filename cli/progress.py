"""Progress on stderr: on terminals only, never with NO_COLOR, only for work that takes longer than two seconds.

Knows stages and counts; nothing of what is done in them.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from kvtune.cli.output import has_colour

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_S = 2.0


class StageProgress:
    """A live line per stage. Call it with the stage, steps done and steps in all (None: not known)."""

    def __init__(self, *, quiet: bool) -> None:
        self._shows = has_colour(sys.stderr) and not quiet
        self._start = time.monotonic()
        self._display: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> StageProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.stop()

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if not self._shows or time.monotonic() - self._start < PATIENCE_S:
            return
        if self._display is None:
            self._display = _display()
            self._display.start()
        task = self._tasks.get(stage)
        if task is None:
            task = self._tasks[stage] = self._display.add_task(stage, total=total)
        self._display.update(task, completed=done, total=total)


def _display() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description:>18}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
