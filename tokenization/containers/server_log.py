"""Lines of vLLM's own log, taken apart: level, time, message. What the message says is the format's business."""

from __future__ import annotations

import re
from typing import Any

from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.strict_json import bad_utf8

# "(APIServer pid=7) INFO 09-01 12:00:00 [logger.py:41] text"; older: "INFO 07-01 12:00:00 logger.py:39] text";
# with a year in some deployments. Colour codes are stripped first.
_LINE = re.compile(
    r"^(?:\([^()]{1,60}\)\s*)?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\s*:?\s+"
    r"(?P<time>(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)\s+\[?[\w./-]+:\d+\]\s(?P<message>.*)$",
    re.DOTALL,
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ABOUT_REQUESTS = ("Received request ", "Request ")

LOG_MESSAGE = "message"
LOG_TIME = "time"


class LogRecord(dict[str, Any]):
    """A log line's message and time; a class of its own, so that no line of JSON can pass for one."""


class LogLines:
    """Tells log lines from others, and from broken JSON, for one file."""

    def __init__(self) -> None:
        self._in_log = False

    def record(self, text: bytes) -> LogRecord | None:
        """The line as a record, an empty one for a line to pass over (a log is full of them), None: no log line.

        Raises `RecordError` where a line about a request is not UTF-8.
        """
        bad: RecordError | None = None
        try:
            line = text.decode()
        except UnicodeDecodeError as error:
            bad = bad_utf8(error)
            line = text.decode("utf-8", "replace")
        line = _COLOUR.sub("", line)
        found = _LINE.match(line)
        if found is None:
            # Banners and tracebacks stand between the lines of a log that has begun.
            return LogRecord() if self._in_log and not line.startswith("[") else None
        self._in_log = True
        message = found["message"]
        if "max_log_len" not in message and not message.startswith(_ABOUT_REQUESTS):
            return LogRecord()
        if bad is not None:
            raise bad
        return LogRecord({LOG_MESSAGE: message, LOG_TIME: found["time"]})
