"""An HTTP request with its response, as gateways and browsers log them: HAR entries, Kong, Envoy's tap, and pairs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.nested import as_json
from kvtune.tokenization.formats.outcome import FAILED, OTHER_OPERATION, outcome
from kvtune.tokenization.formats.responses_history import with_history

_BODIES = (
    "request.postData.text",
    "request.body",
    "request.content",
    "request.payload",
    "ai.proxy.payload.request",
    "ai.ai-proxy.payload.request",
    "http.request.body.content",
    "http.request.body",
    "http_buffered_trace.request.body.as_string",
    "httpRequest.body",
)
_ANSWERS = (
    "response.content.text",
    "response.body",
    "response.content",
    "response.payload",
    "ai.proxy.payload.response",
    "ai.ai-proxy.payload.response",
    "http.response.body.content",
    "http.response.body",
    "http_buffered_trace.response.body.as_string",
    "httpResponse.body",
)
_URLS = (
    "request.url",
    "request.uri",
    "request.path",
    "url.path",
    "url.original",
    "http.request.path",
    "httpRequest.path",
)
_TIMES = (
    "startedDateTime",
    "started_at",
    "start_time",
    "startTime",
    "timestamp",
    "@timestamp",
    "request.timestamp",
)
_STATUS = ("response.status", "response.status_code", "http.response.status_code", "httpResponse.status")


def _recognises(record: Record) -> bool:
    return _body(record) is not None


def _body(record: Record) -> tuple[str, Record] | None:
    for path in _BODIES:
        if path.partition(".")[0] not in record:
            continue
        held = as_json(fields.dig(record, path))
        if isinstance(held, dict) and any(name in held for name in ("messages", "prompt", "input")):
            return path, held
    return None


def _first(record: Record, paths: Iterable[str]) -> tuple[str, Any]:
    return next(
        ((path, held) for path in paths if (held := fields.dig(record, path)) is not None), ("", None)
    )


def _read(record: Record, place: Place) -> Iterable[Draft]:
    found = _body(record)
    if found is None:  # by name only, where the user gave the format
        return read_body(None, origin_of(record, place), "request.body")
    path, body = found
    url = fields.text_of(_first(record, _URLS)[1])
    said = outcome({"status": _first(record, _STATUS)[1], "url": url, "body": body})
    if said in (FAILED, OTHER_OPERATION):
        place.file.note(said)
        return []
    name, time = _first(record, _TIMES)
    answer = as_json(_first(record, _ANSWERS)[1])
    origin = origin_of(
        record,
        place,
        body,
        answer,
        time=fields.time_of({name: time}, (name,)) if name else None,
        server=fields.server_of(record, place) or fields.name_in(record, ("serverIPAddress",)),
    )
    return read_body(with_history(body, answer, place), origin, path, (url or "").partition("?")[0])


FORMAT = Format(
    name="http-exchange",
    about="HTTP requests with their bodies: HAR, Kong's AI log, Envoy's tap, pairs of request and response",
    recognised_by="a body at request.body, request.postData.text, ai.proxy.payload.request or http.request.body",
    example='{"startedDateTime": "2026-01-02T03:04:05Z", "request": {"method": "POST", "url": '
    '"http://h/v1/chat/completions", "postData": {"text": "{\\"model\\": \\"m\\", \\"messages\\": [{\\"role\\": '
    '\\"user\\", \\"content\\": \\"Hi\\"}]}"}}, "response": {"status": 200}}',
    recognises=_recognises,
    read=_read,
)
