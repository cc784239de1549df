"""W&B Weave calls: a client's `create` with its keyword arguments as inputs."""

from __future__ import annotations

from collections.abc import Iterable

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.nested import as_json
from kvtune.tokenization.formats.outcome import FAILED

_PROMPTS = ("messages", "prompt", "input")


def _read(record: Record, place: Place) -> Iterable[Draft]:
    inputs = as_json(record["inputs"])
    if not isinstance(inputs, dict) or not any(inputs.get(name) is not None for name in _PROMPTS):
        place.file.note("Weave calls that are no model calls: left out")
        return []
    if record.get("exception"):
        place.file.note(FAILED)
        return []
    body = {name: value for name, value in inputs.items() if name != "self"}
    extra = body.pop("extra_body", None)
    body |= extra if isinstance(extra, dict) else {}
    origin = origin_of(
        record,
        place,
        body,
        as_json(record.get("output")),
        id=fields.name_in(record, ("id",)) or place.where,
        session=fields.name_in(record, ("thread_id", "trace_id")),
        time=fields.time_of(record, ("started_at",)),
    )
    return read_body(body, origin, "inputs")


FORMAT = Format(
    name="weave",
    about="W&B Weave calls",
    recognised_by="op_name and inputs",
    example='{"id": "c1", "op_name": "openai.chat.completions.create", "trace_id": "t1", "started_at": '
    '"2026-01-02T03:04:05Z", "inputs": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}}',
    recognises=lambda record: "op_name" in record and "inputs" in record,
    read=_read,
)
