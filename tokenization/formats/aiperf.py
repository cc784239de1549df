"""aiperf's superset of Mooncake: text, messages or a whole payload in place of hashes."""

from __future__ import annotations

from collections.abc import Iterable

from kvtune.tokenization.clock import Moment
from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record


def _recognises(record: Record) -> bool:
    if "text_input" in record or "payload" in record:
        return True
    return "messages" in record and ("delay" in record or "output_length" in record)


def _read(record: Record, place: Place) -> Iterable[Draft]:
    session = fields.name_in(record, ("session_id",))
    origin = origin_of(record, place, time=_time(record, session, place), session=session)
    payload = record.get("payload")
    if payload is not None:
        return read_body(payload, origin, "payload")
    if record.get("text_input") is not None:
        return read_body({"prompt": record["text_input"]}, origin, "")
    return read_body(record, origin, "")


def _time(record: Record, session: str | None, place: Place) -> Moment | None:
    """A turn without a time of its own follows its session's last by its delay at the earliest."""
    turns: dict[str, float] = place.file.memory.setdefault("aiperf", {})
    time = fields.time_of(record, ("timestamp",), "ms")
    if time is None and session in turns:
        delay = fields.time_of(record, ("delay",), "ms")
        time = Moment(turns[session] + (delay.value if delay else 0.0), "ms")
    if time is not None and session is not None and time.unit == "ms":
        turns[session] = time.value
    return time


FORMAT = Format(
    name="aiperf",
    about="aiperf's superset of Mooncake: text_input, messages or payload",
    recognised_by="text_input or payload, or messages with delay or output_length",
    example='{"timestamp": 500, "session_id": "s1", "text_input": "Once upon a time", "output_length": 9}',
    recognises=_recognises,
    read=_read,
)
