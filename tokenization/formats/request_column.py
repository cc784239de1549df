"""Tables (CSV, Parquet, JSON lines) with a column that holds a request's body, or the prompt, as JSON or text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.nested import as_json
from kvtune.tokenization.formats.responses_history import with_history
from kvtune.tokenization.rejects import RecordError, describe

_BODIES = ("request", "request_body", "body", "payload", "input")
_RESPONSES = ("response", "response_body", "output", "completion")


def _recognises(record: Record) -> bool:
    # A list of messages as `input`, not as text, is the Responses API's.
    return any(
        _is_body(as_json(record[name]))
        for name in _BODIES
        if name in record and not (name == "input" and isinstance(record[name], list))
    )


def _is_body(value: Any) -> bool:
    if isinstance(value, dict):
        return any(name in value for name in ("messages", "prompt", "input"))
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "role" in value[0]


def _read(record: Record, place: Place) -> Iterable[Draft]:
    name, held = fields.first(record, _BODIES)
    body = as_json(held)
    if isinstance(body, list):
        body = {"messages": body}
    if not isinstance(body, dict):
        raise RecordError("wrong_type", name, found=describe(held), wanted="a request's body")
    response = as_json(fields.first(record, _RESPONSES)[1])
    url = fields.name_in(record, ("url", "path", "endpoint"))
    return read_body(with_history(body, response, place), origin_of(record, place, body, response), name, url)


FORMAT = Format(
    name="request-column",
    about="tables with a column for the request: CSV, Parquet or lines",
    recognised_by="a column request, request_body, body, payload or input that holds a body or messages",
    example='{"timestamp": 0.5, "request": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}}',
    recognises=_recognises,
    read=_read,
)
