"""Baseten's traces: the prompt's text, block hashes, or both; the text is exact, so it comes first."""

from __future__ import annotations

from collections.abc import Iterable

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.block_hashes import read_blocks
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.nested import as_json
from kvtune.tokenization.rejects import RecordError


def _read(record: Record, place: Place) -> Iterable[Draft]:
    session = fields.name_in(record, ("provided_session_id", "poor_man_session_id"))
    time = fields.time_of(record, ("timestamp_start_unix_ms",), "ms")
    origin = origin_of(record, place, session=session, time=time)
    prompt = as_json(record.get("prompt"))
    if isinstance(prompt, dict):
        return read_body(prompt, origin, "prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
        return read_body({"messages": prompt}, origin, "prompt")
    if prompt is not None:
        return read_body({"prompt": prompt}, origin, "")
    size = fields.whole_number(record, ("block_size",), least=1)
    if size is None:
        raise RecordError(
            "missing_field", "block_size", found="nothing", wanted="the size of the hashed blocks"
        )
    length = fields.whole_number(record, ("input_tokens",), least=1)
    return [read_blocks(as_json(record.get("total_hashes")), length, size, origin, field="total_hashes")]


FORMAT = Format(
    name="baseten",
    about="Baseten traces (Parquet, Arrow, CSV or lines): text, or block hashes without it",
    recognised_by="timestamp_start_unix_ms",
    example='{"timestamp_start_unix_ms": 1760000000000, "prompt": "Once upon a time", "input_tokens": 4, '
    '"block_size": 16, "total_hashes": [9], "provided_session_id": "s1"}',
    recognises=lambda record: "timestamp_start_unix_ms" in record,
    read=_read,
)
