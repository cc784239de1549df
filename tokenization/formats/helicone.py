"""Helicone's exports with bodies; key names differ between its exports, so they are looked up by alias."""

from __future__ import annotations

from collections.abc import Iterable

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.nested import as_json

_BODIES = ("request_body", "requestBody", "request")
_MARKS = (
    "response_body",
    "responseBody",
    "request_created_at",
    "requestCreatedAt",
    "helicone_user",
    "request_properties",
    "properties",
    "request_path",
)
_PROPERTIES = ("request_properties", "properties", "requestProperties")


def _recognises(record: Record) -> bool:
    return any(name in record for name in _BODIES) and any(name in record for name in _MARKS)


def _read(record: Record, place: Place) -> Iterable[Draft]:
    request = record.get("request")
    inner = request if isinstance(request, dict) and "body" in request else record
    name, body = fields.first(inner, (*_BODIES[:-1], "body"))
    response = record.get("response")
    answer = response.get("body") if isinstance(response, dict) and "body" in response else None
    if answer is None:
        _, answer = fields.first(record, ("response_body", "responseBody", "response"))
    properties: Record = next((record[one] for one in _PROPERTIES if isinstance(record.get(one), dict)), {})
    session = fields.name_in(properties, ("Helicone-Session-Id", "helicone-session-id", "session_id"))
    identifier = fields.name_in(inner, ("request_id", "requestId", "id")) or fields.name_in(
        record, ("request_id", "id")
    )
    times = ("request_created_at", "requestCreatedAt", "created_at", "createdAt", "timestamp")
    time = fields.time_of(inner, times) or fields.time_of(record, times)
    decoded = as_json(body)
    origin = origin_of(
        record,
        place,
        decoded if isinstance(decoded, dict) else {},
        as_json(answer),
        id=identifier or place.where,
        session=session or fields.name_in(record, fields.SESSIONS),
        time=time,
    )
    path = fields.name_in(inner, ("request_path", "path", "target_url"))
    return read_body(decoded, origin, name, path)


FORMAT = Format(
    name="helicone",
    about="Helicone exports with bodies",
    recognised_by="request_body or request, with response_body, properties or request_created_at",
    example='{"request_id": "r1", "request_created_at": "2026-01-02T03:04:05Z", "request_body": {"model": "m", '
    '"messages": [{"role": "user", "content": "Hi"}]}, "response_body": {}}',
    recognises=_recognises,
    read=_read,
)
