"""How many processes a command may use, and the workers that are worth starting before it knows its trace.

Imports nothing heavy: workers start while the command imports the rest.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from kvtune.cli.analysis_options import AnalysisOptions
from kvtune.tokenization.workers import standby

WORKER_IMPORTS = (
    "kvtune.analyzers.replays",
    "kvtune.tokenization.encoding.open_encoder",
    "kvtune.tokenization.encoding.render_ahead",
)
"""What workers will be asked to do: render chats, then replay."""

_WORTH_A_WORKER_BYTES = 1 << 20
"""Of trace, compressed or not: reading so much takes about as long as a worker takes to start."""


def spare_workers(traces: list[str], asked: AnalysisOptions) -> AbstractContextManager[None]:
    """Stand by: one worker for each megabyte of the files, as far as there are cores."""
    count = min(processes(asked) - 1, local_bytes(traces) // _WORTH_A_WORKER_BYTES)
    return standby(count, WORKER_IMPORTS)


def local_bytes(traces: Sequence[str]) -> int:
    """Of the traces that are files of this machine, compressed or not."""
    return sum(path.stat().st_size for path in map(Path, traces) if path.is_file())


def processes(asked: AnalysisOptions) -> int:
    """Processes in all."""
    return min(asked.input.workers or _usable_cores(), _usable_cores())


def _usable_cores() -> int:
    """Cores that this process may run on, which a container's can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
