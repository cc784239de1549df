"""Vertex AI request-response logging (a BigQuery table): bodies as strings, by themselves or as an instance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.nested import as_json
from kvtune.tokenization.rejects import RecordError, describe


def _read(record: Record, place: Place) -> Iterable[Draft]:
    payloads = as_json(record["request_payload"])
    answers = as_json(record.get("response_payload"))
    bodies = [body for payload in _listed(payloads) for body in _bodies(as_json(payload))]
    if not bodies:
        raise RecordError(
            "no_request", "request_payload", found=describe(payloads), wanted="a body or instances of one"
        )
    name = fields.name_in(record, ("request_id",)) or place.where
    drafts: list[Draft] = []
    for number, body in enumerate(bodies):
        answer = _listed(answers)[0] if len(bodies) == 1 and answers else None
        origin = origin_of(
            record,
            place,
            body,
            as_json(answer),
            id=f"{name}/{number}" if number else name,
            time=fields.time_of(record, ("logging_time",)),
        )
        drafts += read_body(body, origin, "request_payload")
    return drafts


def _listed(held: Any) -> list[Any]:
    return held if isinstance(held, list) else [held]


def _bodies(payload: Any) -> list[Record]:
    if not isinstance(payload, dict):
        return []
    instances = payload.get("instances")
    if isinstance(instances, list):
        return [one for one in instances if isinstance(one, dict)]
    return [payload]


FORMAT = Format(
    name="vertex",
    about="Vertex AI request-response logs",
    recognised_by="request_payload",
    example='{"endpoint": "1", "logging_time": "2026-01-02T03:04:05Z", "request_id": "r1", "request_payload": '
    '["{\\"model\\": \\"m\\", \\"messages\\": [{\\"role\\": \\"user\\", \\"content\\": \\"Hi\\"}]}"]}',
    recognises=lambda record: "request_payload" in record,
    read=_read,
)
