"""Takes records out of what log shippers, queues and APIs wrap them in, before any format is asked.

A page of records (`{"data": [...]}`) is its records. A record, or a line of a log, inside one of the usual fields of
a shipper's object is that record; the object's time is its time where it has none, and the rest of the object stays
with it, so that options which name a field see it. A record of a known format is never taken apart.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from kvtune.tokenization.containers.item import SHIPPED_AT, WRAPPER, Item
from kvtune.tokenization.containers.server_log import LOG_TIME, LogLines, LogRecord
from kvtune.tokenization.formats import recognise
from kvtune.tokenization.formats.fields import dig, usual_time
from kvtune.tokenization.formats.format import Record
from kvtune.tokenization.formats.nested import as_json
from kvtune.tokenization.formats.refused import refusal
from kvtune.tokenization.rejects import RecordError, describe

_PAGES = (
    ("observations",),
    ("log", "entries"),
    ("hits", "hits"),
    ("data",),
    ("data", "result"),
    ("rows",),
    ("items",),
    ("runs",),
    ("traces",),
    ("events",),
    ("entries",),
    ("results",),
    ("records",),
    ("Records",),
    ("logs",),
    ("logEvents",),
    ("calls",),
    ("generations",),
)
_ALWAYS_PAGES = 3  # of these: a trace around its observations may show one call's messages as its own
_FIELDS = (
    "message",
    "log",
    "line",
    "_raw",
    "raw",
    "_source",
    "jsonPayload",
    "textPayload",
    "protoPayload",
    "result",
    "payload",
    "event",
    "value",
    "msg",
    "MESSAGE",
    "@message",
    "record",
    "body",
    "b",
    "data",
    "kinesis",
)
_HOLDERS = frozenset({*(path[0] for path in _PAGES), *_FIELDS, "values"})
_SESSIONS = ("sessionId", "session_id")
_MOST_DEPTH = 5
_CONTAINER_PIECE = 16_000  # bytes: docker's json-file driver cuts longer lines into pieces of 16 KiB
_MOST_BASE64 = 64 << 20

PASSED_OVER = "Log lines that hold no request: passed over"


class Unwrapper:
    """Unwraps the records of one file.

    Attributes:
        passed_over: log lines inside shippers' objects that hold no request, so far.
    """

    def __init__(self, most_bytes: int, body_field: str | None = None) -> None:
        self.passed_over = 0
        self._lines = LogLines(most_bytes)
        self._most_bytes = most_bytes
        self._body_field = body_field
        self._pieces: dict[str, list[str]] = {}

    def items(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items, each record out of its wrapping."""
        for item in items:
            value = item.value
            if isinstance(value, RecordError | LogRecord):
                yield item
            elif self._body_field is not None:
                yield item._replace(value=_body_at(value, self._body_field))
            elif _HOLDERS.isdisjoint(value):
                yield item
            else:
                yield from self._unwrapped(item)

    def _unwrapped(self, item: Item) -> Iterator[Item]:
        try:
            records = self._records(item.value, 0) if isinstance(item.value, dict) else None
        except RecordError as error:
            yield item._replace(value=error)
            return
        if records is None or (len(records) == 1 and records[0] is item.value):
            yield item
            return
        for number, record in enumerate(records):
            pieces = item.pieces if len(records) == 1 else _encoded(record)
            yield Item(f"{item.where}/{number}" if number else item.where, record, pieces)

    def _records(self, record: Record, depth: int) -> list[Record] | None:
        """What a record holds; None where that is of no known format."""
        for path in _PAGES[:_ALWAYS_PAGES]:
            page = _page(record, path)
            if page is not None:
                return self._of_page(record, page, depth)
        if isinstance(record, LogRecord) or recognise(record) is not None or refusal(record) is not None:
            return [record]
        if depth >= _MOST_DEPTH:
            return None
        for path in _PAGES[_ALWAYS_PAGES:]:
            page = _page(record, path)
            if page is not None:
                return self._of_page(record, page, depth)
        if isinstance(record.get("values"), list):
            return self._of_stream(record, depth)
        return self._of_fields(record, depth)

    def _of_page(self, page: Record, inner: list[Record], depth: int) -> list[Record]:
        session = {name: page[name] for name in _SESSIONS if page.get(name) is not None}
        found: list[Record] = []
        for one in inner:
            held = self._records(one, depth + 1) if depth < _MOST_DEPTH else None
            found += [
                record if isinstance(record, LogRecord) else session | record
                for record in ([one] if held is None else held)
            ]
        return found

    def _of_stream(self, stream: Record, depth: int) -> list[Record] | None:
        """Loki's answer: pairs of a time in nanoseconds and a line."""
        pairs = [one for one in stream["values"] if isinstance(one, list) and len(one) == 2]
        if not pairs:
            return None
        lines = [{"line": line, "timestamp": time} for time, line in pairs]
        return self._of_page({}, lines, depth)

    def _of_fields(self, record: Record, depth: int) -> list[Record] | None:
        is_log = False
        for name in _FIELDS:
            value = record.get(name)
            if isinstance(value, str):
                is_log = is_log or name not in ("b", "body", "data", "value", "event", "result")
                held = self._of_text(record, name, value)
            else:
                held = value if isinstance(value, dict) else None
            if held is None:
                continue
            if isinstance(held, LogRecord):
                if not held:
                    return []
                time = held[LOG_TIME] or _plain_time(record)
                return [LogRecord(held | {LOG_TIME: time})]
            found = self._records(held, depth + 1)
            if found is not None:
                return [_within(one, record, name) for one in found]
        if is_log:
            self.passed_over += 1
            return []
        return None

    def _of_text(self, record: Record, name: str, text: str) -> Record | None:
        """The record that a text holds, None where it holds none."""
        if name == "log":
            whole = self._joined(record, text)
            if whole is None:
                return LogRecord()
            text = whole
        stripped = text.strip()
        if stripped.startswith("{"):
            held = as_json(stripped)
            return held if isinstance(held, dict) else None
        if name == "data":
            return _of_base64(stripped)
        taken = self._lines.take(stripped.encode("utf-8", "surrogatepass"))
        if taken.record is not None:
            return taken.record or None
        held = as_json(taken.text.decode("utf-8", "surrogatepass"))
        return {**held, SHIPPED_AT: taken.time} if isinstance(held, dict) else None

    def _joined(self, record: Record, text: str) -> str | None:
        """A whole line of docker's json-file log; None for a piece of one that goes on."""
        stream = str(record.get("stream"))
        pieces = self._pieces.setdefault(stream, [])
        pieces.append(text)
        if sum(map(len, pieces)) > self._most_bytes:
            pieces.clear()
            raise RecordError("line_too_long", "log", found=describe(text), wanted="a shorter line")
        if not text.endswith("\n") and len(text.encode("utf-8", "surrogatepass")) >= _CONTAINER_PIECE:
            held = as_json(text)
            if not isinstance(held, dict):
                return None
        return "".join(self._pieces.pop(stream))


def _page(record: Record, path: tuple[str, ...]) -> list[Record] | None:
    held: Any = record
    for name in path:
        held = held.get(name) if isinstance(held, dict) else None
    whole = isinstance(held, list) and bool(held) and all(isinstance(one, dict) for one in held)
    return held if whole else None


def _within(record: Record, around: Record, name: str) -> Record:
    """A record with what stood around it."""
    if isinstance(record, LogRecord):
        return record if record.get(LOG_TIME) else LogRecord(record | {LOG_TIME: _plain_time(around)})
    rest = {key: value for key, value in around.items() if key != name}
    outer = record.get(WRAPPER)
    added: Record = {WRAPPER: rest | outer if isinstance(outer, dict) else rest}
    if record.get(SHIPPED_AT) is None:
        added[SHIPPED_AT] = usual_time(around)
    return record | added


def _plain_time(around: Record) -> str | None:
    time = usual_time(around)
    return time if isinstance(time, str) else None


def _of_base64(text: str) -> Record | None:
    """What Kinesis and Firehose records and Kafka's REST answers hold."""
    if len(text) > _MOST_BASE64:
        return None
    try:
        held = as_json(base64.b64decode(text, validate=True).decode())
    except (binascii.Error, ValueError):
        return None
    return held if isinstance(held, dict) else None


def _body_at(record: Record, path: str) -> Record | RecordError:
    """The body at the user's path, with the record around it."""
    held = as_json(dig(record, path) if record.get(path) is None else record[path])
    if isinstance(held, list) and held and isinstance(held[0], dict) and "role" in held[0]:
        held = {"messages": held}
    if not isinstance(held, dict):
        return RecordError(
            "missing_field", path, found=describe(held), wanted="a request's body (--body-field)"
        )
    return held | {WRAPPER: record, SHIPPED_AT: usual_time(record)}


def _encoded(record: Record) -> Iterator[bytes]:
    """A record as a line, written only if somebody asks."""
    yield msgspec.json.encode(record, enc_hook=str)


_MOST_LOOKED = 2000


def body_path(record: Record) -> str | None:
    """Where in a record of no known format something like a request's body stands, None where nothing does."""
    queue: list[tuple[str, Any, int]] = [("", record, 0)]
    for looked, (path, held, depth) in enumerate(queue):
        if looked > _MOST_LOOKED:
            return None
        value = as_json(held) if path else held
        if not isinstance(value, dict) or depth > _MOST_DEPTH:
            continue
        if (path and isinstance(value.get("messages"), list)) or (
            path and isinstance(value.get("prompt"), str)
        ):
            return path
        queue += [
            (f"{path}.{name}" if path else name, one, depth + 1)
            for name, one in value.items()
            if isinstance(one, dict | str) and name.replace("-", "_").isidentifier() and len(name) <= 40
        ]
    return None
