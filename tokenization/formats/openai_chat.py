"""Chat bodies as they are sent to `/v1/chat/completions`, one a line, with or without an answer beside them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import origin_of, read_chat
from kvtune.tokenization.formats.format import Draft, Format, Place, Record


def _recognises(record: Record) -> bool:
    return "messages" in record


def _read(record: Record, place: Place) -> Iterable[Draft]:
    known: dict[str, Any] = {}
    output, output_tokens = fields.output_of(record.get("response", record if "choices" in record else None))
    if output is not None:
        known["output"] = output
    if output_tokens is not None:
        known["output_tokens"] = output_tokens
    return read_chat(record, origin_of(record, place, **known))


FORMAT = Format(
    name="openai-chat",
    about="bodies of /v1/chat/completions",
    recognised_by="messages",
    example='{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}',
    recognises=_recognises,
    read=_read,
)
