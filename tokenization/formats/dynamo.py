"""Dynamo's request traces: what the end of a request records of its prompt's block hashes."""

from __future__ import annotations

from collections.abc import Iterable

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.block_hashes import read_blocks
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.rejects import RecordError

_SCHEMA = "dynamo.request.trace"
_HOLDERS = ("request", "event", "data", "payload")  # the replay stands in the record or in one of these
_CONTEXTS = ("agent_context", "agent", "timing", "worker", "metrics")
_TIMES = ("request_received_ms", "received_unix_ms", "start_time_unix_ms", "event_time_unix_ms")
_SESSIONS = ("session_id", "trajectory_id", "conversation_id")
_WORKERS = ("worker_id", "prefill_worker_id", "decode_worker_id")
_LENGTHS = ("output_length", "output_tokens", "output_token_count")


def _recognises(record: Record) -> bool:
    return str(record.get("schema", "")).startswith(_SCHEMA) or _replay_in(record)[1] is not None


def _replay_in(record: Record) -> tuple[str, Record | None, Record]:
    """Where the replay stands, the replay, and the object around it."""
    for name, outer in (("", record), *((name, record.get(name)) for name in _HOLDERS)):
        replay = outer.get("replay") if isinstance(outer, dict) else None
        if isinstance(outer, dict) and isinstance(replay, dict) and "input_sequence_hashes" in replay:
            return f"{name}.replay" if name else "replay", replay, outer
    return "", None, record


def _read(record: Record, place: Place) -> Iterable[Draft]:
    field, replay, outer = _replay_in(record)
    if replay is None:
        return []  # another event of a request's life
    size = fields.whole_number(replay, ("trace_block_size",), least=1)
    if size is None:
        raise RecordError(
            "missing_field", f"{field}.trace_block_size", found="nothing", wanted="the blocks' size"
        )
    roots = [replay, outer, record]
    roots += [held for root in roots[1:] for name in _CONTEXTS if isinstance(held := root.get(name), dict)]
    # Whatever level a release keeps a field on: one flat view, the inner levels first.
    flat: Record = {}
    for root in reversed(roots):
        flat |= root
    origin = origin_of(
        flat,
        place,
        session=fields.name_in(flat, _SESSIONS),
        time=fields.time_of(flat, _TIMES, "ms") or fields.time_of(flat),
        server=fields.server_of(flat, place, _WORKERS),
        output_tokens=fields.whole_number(flat, _LENGTHS),
    )
    length = fields.whole_number(replay, ("input_length",), least=1)
    return [
        read_blocks(
            replay["input_sequence_hashes"], length, size, origin, field=f"{field}.input_sequence_hashes"
        )
    ]


FORMAT = Format(
    name="dynamo",
    about="Dynamo request traces (DYN_REQUEST_TRACE=1)",
    recognised_by='schema "dynamo.request.trace…" or replay.input_sequence_hashes',
    example='{"schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": 1760000000000, '
    '"request": {"request_id": "r1", "replay": {"trace_block_size": 64, "input_length": 100, '
    '"input_sequence_hashes": [1]}}}',
    recognises=_recognises,
    read=_read,
)
