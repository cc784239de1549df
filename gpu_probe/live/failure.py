"""Why a server did not come up: one line from the end of its log.

Knows the wording of a few failures; a log is hostile input, so only its tail is read and one line is shown, cut.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

from kvtune.tokenization.errors import KvtuneError, MissingDependencyError

_TAIL_BYTES = 262_144
_LINE_CHARS = 240
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_PREFIX = re.compile(
    r"^(?:\([^)]{1,60}\)\s*)*(?:(?:ERROR|WARNING|INFO|CRITICAL)\s+\S+ \S+ \[[^\]]{1,80}\]\s*)?"
)
_EXCEPTION = re.compile(r"^[\w.]{0,80}(?:Error|Exception|Interrupt|Exit)\b.{0,400}")
_GOES_ON = re.compile(r"\s+(?!File |raise |return )\S")
_NO_SUCH_FLAG = re.compile(r"unrecognized arguments:.{0,400}--prefix-match-unit")
_FOLLOW_UP = (
    "EngineDeadError",
    "See root cause above",
    "Engine core initialization failed",
    "WorkerProc initialization",
)
"""Errors that only say that another process has failed."""


def died_while_loading(log: Path, code: int, stage: str = "while loading") -> KvtuneError:
    """The error for a server that has exited with `code` (negative: the signal that ended it)."""
    lines = _tail(log)
    if any(_NO_SUCH_FLAG.search(line) for line in lines):
        return MissingDependencyError(
            "this vLLM does not know --prefix-match-unit",
            where=str(log),
            wanted="release 0.26 or newer",
            way_out="validate the unit unset only, or upgrade the server",
        )
    how = f"exit code {code}" if code >= 0 else f"signal {_signal_name(-code)}"
    reason = _reason(lines)
    return MissingDependencyError(
        f"the server died {stage} ({how})" + (f": {reason}" if reason else ""),
        way_out=f"its log is kept in {log}",
    )


def never_ready(log: Path, timeout_s: float) -> KvtuneError:
    """The error for a server that still does not answer."""
    lines = _tail(log)
    last = f"last log line: {_bare(lines[-1])[:_LINE_CHARS]}" if lines else "its log is empty"
    return MissingDependencyError(
        f"the server was not ready after {timeout_s:g} s",
        found=last,
        way_out=f"allow more with --ready-timeout; its log is kept in {log}",
    )


def _reason(lines: list[str]) -> str:
    """The last exception that is not about another process's death, else the last line that says error.

    An exception's text may go on in lines of their own, indented: the first of them belongs to it.
    """
    bare = [_bare(line) for line in lines]
    causes = [index for index, line in enumerate(bare) if _EXCEPTION.match(line)]
    first_hand = [index for index in causes if not any(text in bare[index] for text in _FOLLOW_UP)]
    errors = [index for index, line in enumerate(bare) if "error" in line.lower()]
    for found in (first_hand, causes, errors, range(len(bare))):
        if found:
            last = found[-1]
            more = (
                bare[last + 1]
                if last + 1 < len(bare) and _GOES_ON.match(_unprefixed(lines[last + 1]))
                else ""
            )
            return f"{bare[last]} {more}".strip()[:_LINE_CHARS]
    return ""


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()]


def _bare(line: str) -> str:
    return _unprefixed(line).strip()


def _unprefixed(line: str) -> str:
    return _PREFIX.sub("", _ESCAPES.sub("", line[:2_000]))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
