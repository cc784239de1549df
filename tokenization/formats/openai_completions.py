"""Bodies of `/v1/completions`: a text, ids, or a list of either; no template touches them."""

from __future__ import annotations

from collections.abc import Iterable

from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of_body
from kvtune.tokenization.formats.format import Draft, Format, Place, Record


def _read(record: Record, place: Place) -> Iterable[Draft]:
    return read_body(record, origin_of_body(record, place), "", "/v1/completions")


FORMAT = Format(
    name="openai-completions",
    about="bodies of /v1/completions: text, token ids, or a list of either",
    recognised_by="prompt",
    example='{"model": "m", "prompt": "Once upon a time"}',
    recognises=lambda record: "prompt" in record,
    read=_read,
)
