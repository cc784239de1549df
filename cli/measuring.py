"""What the command itself cost on this machine, and when it ran: the report's `measured`.

SOURCE_DATE_EPOCH fixes the date, as the convention for reproducible builds has it.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from datetime import UTC, datetime

import msgspec

from kvtune.analyzers.report import Report
from kvtune.tokenization.errors import UnusableInputError


def created_now() -> str:
    """The time in UTC, RFC 3339, to the second.

    Raises:
        UnusableInputError: SOURCE_DATE_EPOCH is no count of seconds.
    """
    fixed = os.environ.get("SOURCE_DATE_EPOCH")
    if fixed and not (fixed.isascii() and fixed.isdigit() and len(fixed) <= 11):
        raise UnusableInputError(
            "is unusable", field="SOURCE_DATE_EPOCH", found=repr(fixed[:40]), wanted="seconds since 1970"
        )
    moment = datetime.fromtimestamp(int(fixed), UTC) if fixed else datetime.now(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


class Stopwatch:
    """Wall and CPU seconds since it was made, children that have ended included."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = _cpu_s()

    def complete(self, report: Report) -> Report:
        """The report with the command's own times and its largest memory."""
        measured = msgspec.structs.replace(
            report.measured,
            wall_s=round(time.perf_counter() - self._wall, 3),
            cpu_s=round(_cpu_s() - self._cpu, 3),
            peak_bytes=_peak_bytes(),
        )
        return msgspec.structs.replace(report, measured=measured)


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _peak_bytes() -> int:
    """Of this process and, added to it, the largest of its children that have ended."""
    unit = 1 if sys.platform == "darwin" else 1024
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(resource.getrusage(who).ru_maxrss for who in whose) * unit
