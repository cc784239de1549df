"""Weka's agentic traces: a record is a conversation of hashed requests, subagents nested inside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kvtune.tokenization.clock import PER_SECOND, Moment, decide_unit
from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.block_hashes import read_blocks
from kvtune.tokenization.formats.drafts import Origin
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.rejects import RecordError, describe

BLOCK_SIZE = 64
_MOST_NESTED = 8


def _read(record: Record, place: Place) -> Iterable[Draft]:
    conversation = fields.name_in(record, ("id", "conversation_id")) or place.where
    scope = conversation if record.get("hash_id_scope") == "local" else None
    size = fields.whole_number(record, ("block_size",), least=1) or BLOCK_SIZE
    origin = Origin(
        id=conversation,
        source=place.where,
        session=conversation,
        server=fields.server_of(record, place),
        identity=fields.identity_of(record, record, place),
    )
    start = _start(record, place)
    return list(_requests(record.get("requests"), origin, size, scope, start, place, 0))


def _requests(
    requests: Any,
    origin: Origin,
    size: int,
    scope: str | None,
    start: float | None,
    place: Place,
    depth: int,
) -> Iterator[Draft]:
    if not isinstance(requests, list) or depth > _MOST_NESTED:
        raise RecordError("wrong_type", "requests", found=describe(requests), wanted="a list of requests")
    for number, one in enumerate(requests):
        field = f"requests[{number}]"
        if not isinstance(one, dict):
            raise RecordError("wrong_type", field, found=describe(one), wanted="a request")
        name = f"{origin.id}/{number}"
        if isinstance(one.get("requests"), list):  # a subagent, with a conversation of its own
            agent = fields.name_in(one, ("agent_id",)) or name
            inner = origin.renamed(name, session=f"{origin.session}/{agent}", parent=origin.id)
            yield from _requests(one["requests"], inner, size, scope, start, place, depth + 1)
        elif one.get("hash_ids") is not None:
            own = origin.renamed(
                name,
                time=_time(one, start),
                stream={"s": True, "n": False}.get(str(one.get("type"))),
                identity=fields.identity_of(one, {}, place) if "model" in one else origin.identity,
                output_tokens=fields.whole_number(one, ("out",)),
            )
            length = fields.whole_number(one, ("in",), least=1)
            yield read_blocks(one["hash_ids"], length, size, own, field=f"{field}.hash_ids", scope=scope)


def _time(one: Record, start: float | None) -> Moment | None:
    """`t` counts from the conversation's start, in seconds."""
    offset = fields.time_of(one, ("t",), "s")
    return offset if offset is None or start is None else offset._replace(value=start + offset.value)


def _start(record: Record, place: Place) -> float | None:
    time = fields.time_of(record)
    if time is None:
        place.file.note("Conversations whose start the log does not tell all begin at 0")
        return None
    return time.value / PER_SECOND[time.unit or decide_unit([time.value])]


FORMAT = Format(
    name="weka",
    about="Weka's agentic traces: a conversation a record, with subagents",
    recognised_by="requests with hash_id_scope or block_size",
    example='{"id": "c1", "block_size": 64, "hash_id_scope": "local", "requests": [{"t": 0.0, "type": "s", '
    '"model": "m", "in": 100, "out": 9, "hash_ids": [1, 2]}]}',
    recognises=lambda record: (
        isinstance(record.get("requests"), list) and ("hash_id_scope" in record or "block_size" in record)
    ),
    read=_read,
)
