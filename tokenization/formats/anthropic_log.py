"""Bodies of Anthropic's `/v1/messages`, one a line, with or without the response beside them."""

from __future__ import annotations

from collections.abc import Iterable

from kvtune.tokenization.formats.anthropic import is_anthropic
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of_body
from kvtune.tokenization.formats.format import Draft, Format, Place, Record


def _read(record: Record, place: Place) -> Iterable[Draft]:
    if record.get("context_management"):
        place.file.note(
            "The API edits the context of requests with context_management; read as they were sent"
        )
    return read_body(record, origin_of_body(record, place), "", "/v1/messages")


FORMAT = Format(
    name="anthropic",
    about="bodies of Anthropic's /v1/messages",
    recognised_by="messages with system, input_schema tools or Anthropic's blocks",
    example='{"model": "m", "max_tokens": 9, "system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}]}',
    recognises=lambda record: "messages" in record and is_anthropic(record),
    read=_read,
)
