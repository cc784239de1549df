"""SageMaker data capture: the body that an endpoint received, as a string, and what it answered."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.nested import as_json


def _read(record: Record, place: Place) -> Iterable[Draft]:
    body = _captured(record, "endpointInput")
    answer = _captured(record, "endpointOutput")
    event = record.get("eventMetadata")
    event = event if isinstance(event, dict) else {}
    origin = origin_of(
        record,
        place,
        body if isinstance(body, dict) else {},
        answer,
        id=fields.name_in(event, ("inferenceId", "eventId")) or place.where,
        time=fields.time_of(event, ("inferenceTime",)),
    )
    if isinstance(body, dict) and "inputs" in body and "messages" not in body:
        body = {"prompt": body["inputs"]}  # the text-generation containers' own body
    return read_body(body, origin, "captureData.endpointInput.data")


def _captured(record: Record, side: str) -> Any:
    held = fields.dig(record, f"captureData.{side}")
    data = held.get("data") if isinstance(held, dict) else None
    if isinstance(data, str) and held.get("encoding") == "BASE64":
        try:
            data = base64.b64decode(data, validate=True).decode()
        except (binascii.Error, ValueError):
            return None
    return as_json(data)


FORMAT = Format(
    name="sagemaker",
    about="SageMaker data capture",
    recognised_by="captureData",
    example='{"captureData": {"endpointInput": {"encoding": "JSON", "data": "{\\"prompt\\": \\"Once upon\\"}"}}, '
    '"eventMetadata": {"eventId": "e1", "inferenceTime": "2026-01-02T03:04:05Z"}}',
    recognises=lambda record: isinstance(record.get("captureData"), dict),
    read=_read,
)
