"""OpenHands' completion logs: messages, with the tools among the keyword arguments."""

from __future__ import annotations

from collections.abc import Iterable

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import read_chat
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record


def _read(record: Record, place: Place) -> Iterable[Draft]:
    response = record.get("response")
    held = response if isinstance(response, dict) else {}
    body = dict(record["kwargs"]) | {"messages": record["messages"], "model": held.get("model")}
    origin = origin_of(
        record,
        place,
        body,
        response,
        id=fields.name_in(held, ("id",)) or place.where,
        time=fields.time_of(record, ("timestamp",)),
    )
    return read_chat(body, origin)


FORMAT = Format(
    name="openhands",
    about="OpenHands completion logs (LOG_COMPLETIONS)",
    recognised_by="messages, kwargs and response",
    example='{"messages": [{"role": "user", "content": "Hi"}], "response": {"id": "r1", "model": "m"}, "args": [], '
    '"kwargs": {"tools": []}, "timestamp": 1796080956.7}',
    recognises=lambda record: (
        "messages" in record and isinstance(record.get("kwargs"), dict) and "response" in record
    ),
    read=_read,
)
