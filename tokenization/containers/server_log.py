"""Lines of logs taken apart: what a log shipper puts before a line, and vLLM's own level, time and message.

What the message says is the format's business.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from kvtune.tokenization.containers.item import too_long
from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.strict_json import bad_utf8

# "(APIServer pid=7) INFO 09-01 12:00:00 [logger.py:41] text"; older: "INFO 07-01 12:00:00 logger.py:39] text";
# with a year in some deployments. Colour codes are stripped first.
_LINE = re.compile(
    r"^(?:\([^()]{1,60}\)\s*)?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\s*:?\s+"
    r"(?P<time>(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)\s+\[?[\w./-]+:\d+\]\s(?P<message>.*)$",
    re.DOTALL,
)
# The same message behind another logging format ("2026-11-30 07:12:00 - name - DEBUG - text").
_OTHER_LINE = re.compile(
    r"^[^'\"{}]{0,200}?\b(?P<message>(?:Received request \S{1,200}: |Request \S{1,200} (?:details|JSON body): "
    r"|Receive: obj=GenerateReqInput\().*)$",
    re.DOTALL,
)
SGLANG_MARK = "Receive: obj=GenerateReqInput("
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ABOUT_REQUESTS = ("Received request ", "Request ")

_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_ANY_TIME = re.compile(_TIME)
_CRI = re.compile(rf"(?P<time>{_TIME}) (?P<stream>stdout|stderr) (?P<tag>[FP])(?::\S*)? ?")
_PREFIXES = (
    re.compile(r"\[[\w./-]{1,300}\] "),  # kubectl logs --prefix
    re.compile(r"[\w./-]{1,200}\s{1,60}\| "),  # docker compose
    re.compile(  # syslog and journald
        rf"(?:<\d{{1,3}}>)?(?:1 )?(?:[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d|(?P<time>{_TIME})) "
        r"[\w.-]{1,200} [\w./@-]{1,200}(?:\[\d+\])?: "
    ),
    re.compile(rf"(?P<time>{_TIME})\s+"),  # kubectl and docker logs --timestamps, CloudWatch exports
)
_MOST_PREFIXES = 4
_BEFORE_JSON = re.compile(r"[^{}'\"\\]{1,300}(?=\{\s*\")")

LOG_MESSAGE = "message"
LOG_TIME = "time"


class LogRecord(dict[str, Any]):
    """A log line's message and time; a class of its own, so that no line of JSON can pass for one."""


class LogLine(NamedTuple):
    """What a line holds: a record (an empty one: nothing to read), or JSON text to decode; the time before it."""

    record: LogRecord | None
    text: bytes
    time: str | None = None


class LogLines:
    """Tells log lines from others, and from broken JSON, for one file."""

    def __init__(self, most_bytes: int) -> None:
        self._in_log = False
        self._most_bytes = most_bytes
        self._parts: dict[
            str, list[str]
        ] = {}  # stream -> what the container runtime cut into lines of its own

    def take(self, line: bytes) -> LogLine:
        """The line as a record, an empty one for a line to pass over (a log is full of them), else its JSON text.

        Raises `RecordError` where a line about a request is not UTF-8.
        """
        bad: RecordError | None = None
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            bad = bad_utf8(error)
            text = line.decode("utf-8", "replace")
        text = _COLOUR.sub("", text)
        joined = self._joined(text)
        if joined is None:
            return LogLine(LogRecord(), b"")
        text, time, shipped = joined
        text, before, prefixed = _without_prefixes(text)
        time = before or time
        self._in_log = self._in_log or shipped
        record = self._record(text, time)
        if record is not None:
            if record and bad is not None:
                raise bad
            return LogLine(record, b"")
        found = None if text.startswith("{") else _BEFORE_JSON.match(text)
        held = text[found.end() :] if found else text
        if held.startswith("{") and (found or prefixed or shipped):
            if bad is not None:
                raise bad
            return LogLine(None, held.encode("utf-8", "surrogateescape"), time)
        if shipped or prefixed or (self._in_log and not text.startswith("[")):
            return LogLine(LogRecord(), b"")  # banners and tracebacks stand between the lines of a log
        return LogLine(None, line.strip(b" \t\r"))

    def _joined(self, text: str) -> tuple[str, str | None, bool] | None:
        """A line without the container runtime's fields, whole; None for a part of one that goes on."""
        found = _CRI.match(text)
        if found is None:
            return text.strip(" \t\r"), None, False
        parts = self._parts.setdefault(found["stream"], [])
        parts.append(text[found.end() :])
        if sum(map(len, parts)) > self._most_bytes:
            parts.clear()
            raise too_long(self._most_bytes)
        if found["tag"] == "P":
            return None
        whole = "".join(self._parts.pop(found["stream"]))
        return whole.strip(" \t\r"), found["time"], True

    def _record(self, text: str, time: str | None) -> LogRecord | None:
        """vLLM's own line as a record, an empty one where it is about no request; None for any other line."""
        found = _LINE.match(text)
        if found is None:
            found = _OTHER_LINE.match(text)
            if found is None:
                return None
            self._in_log = True
            before = _ANY_TIME.search(text, 0, found.start("message"))
            return LogRecord({LOG_MESSAGE: found["message"], LOG_TIME: before[0] if before else time})
        self._in_log = True
        message = found["message"]
        if "max_log_len" not in message and not message.startswith(_ABOUT_REQUESTS):
            return LogRecord()
        return LogRecord({LOG_MESSAGE: message, LOG_TIME: found["time"]})


def _without_prefixes(text: str) -> tuple[str, str | None, bool]:
    """A line without what a shipper puts before it; the last time that stood there; whether anything did."""
    time: str | None = None
    removed = False
    for _ in range(_MOST_PREFIXES):
        found = next((match for one in _PREFIXES if (match := one.match(text))), None)
        if found is None:
            break
        time = found.groupdict().get("time") or time
        text = text[found.end() :]
        removed = True
    return text, time, removed
