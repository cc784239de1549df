"""Bodies of OpenAI's `/v1/responses`, one a line, with or without the response beside them."""

from __future__ import annotations

from collections.abc import Iterable

from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of_body
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.responses_history import with_history


def _read(record: Record, place: Place) -> Iterable[Draft]:
    body = with_history(record, record.get("response"), place)
    return read_body(body, origin_of_body(record, place), "", "/v1/responses")


FORMAT = Format(
    name="openai-responses",
    about="bodies of /v1/responses that hold their whole history",
    recognised_by="input with model, instructions or previous_response_id",
    example='{"model": "m", "instructions": "Be brief.", "input": [{"role": "user", "content": "Hi"}]}',
    recognises=lambda record: (
        "input" in record
        and ("model" in record or "instructions" in record or "previous_response_id" in record)
    ),
    read=_read,
)
