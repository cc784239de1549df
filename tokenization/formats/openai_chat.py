"""Chat bodies as they are sent to `/v1/chat/completions`, one a line, with or without an answer beside them."""

from __future__ import annotations

from collections.abc import Iterable

from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of_body
from kvtune.tokenization.formats.format import Draft, Format, Place, Record


def _recognises(record: Record) -> bool:
    return "messages" in record


def _read(record: Record, place: Place) -> Iterable[Draft]:
    return read_body(record, origin_of_body(record, place), "", "/v1/chat/completions")


FORMAT = Format(
    name="openai-chat",
    about="bodies of /v1/chat/completions",
    recognised_by="messages",
    example='{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}',
    recognises=_recognises,
    read=_read,
)
