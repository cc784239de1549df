"""aiperf's superset of Mooncake: text, messages or a whole payload in place of hashes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvtune.tokenization.clock import Moment
from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import Origin, origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record


def _recognises(record: Record) -> bool:
    if "text_input" in record or isinstance(record.get("payloads"), list):
        return True
    payload = record.get("payload")
    if isinstance(payload, list):
        return bool(payload) and all(_is_body(one) for one in payload)
    return _is_body(payload) or ("messages" in record and ("delay" in record or "output_length" in record))


def _is_body(payload: Any) -> bool:
    return isinstance(payload, dict) and any(name in payload for name in ("messages", "prompt", "input"))


def _read(record: Record, place: Place) -> Iterable[Draft]:
    session = fields.name_in(record, ("session_id",))
    origin = origin_of(record, place, time=_time(record, session, place), session=session)
    name, payload = fields.first(record, ("payloads", "payload"))
    if isinstance(payload, list):  # the inputs of aiperf and GenAI-Perf: a session's turns
        turns = [
            read_body(one, _of_turn(origin, one, number, record, place), f"{name}[{number}]")
            for number, one in enumerate(payload)
        ]
        return [draft for turn in turns for draft in turn]
    if payload is not None:
        return read_body(payload, origin, "payload")
    if record.get("text_input") is not None:
        return read_body({"prompt": record["text_input"]}, origin, "")
    return read_body(record, origin, "")


def _of_turn(origin: Origin, body: Any, number: int, record: Record, place: Place) -> Origin:
    identity = fields.identity_of(body if isinstance(body, dict) else {}, record, place)
    return origin.renamed(f"{origin.id}/{number}", identity=identity)


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
    about="aiperf's superset of Mooncake (text_input, messages, payload), and the inputs of aiperf and GenAI-Perf",
    recognised_by="text_input, a payload that is a body, payloads, or messages with delay or output_length",
    example='{"timestamp": 500, "session_id": "s1", "text_input": "Once upon a time", "output_length": 9}',
    recognises=_recognises,
    read=_read,
)
