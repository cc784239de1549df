"""JSON inside a string, as many logs keep bodies and messages; bounded like the lines themselves."""

from __future__ import annotations

import re
from typing import Any

from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.strict_json import StrictDecoder


def as_json(value: Any) -> Any:
    """What a string that is a JSON object or array holds; anything else as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return StrictDecoder(remember_bytes=0).decode(value.strip().encode("utf-8", "surrogatepass"))
    except RecordError:
        return value


_BEGINS_LIKE_MESSAGES = re.compile(
    r'\s*[\[{]\s*[\[{]?\s*"(?:role|messages|content|parts|type|model|input)"\s*:'
)


def refuse_cut_json(text: str, field: str) -> None:
    """Raises `RecordError` for a text that begins like messages as JSON and is none: the log cut it."""
    if _BEGINS_LIKE_MESSAGES.match(text) and isinstance(as_json(text), str):
        raise RecordError(
            "truncated_prompt",
            field,
            found="JSON that the log cut",
            wanted="whole values (no OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT or other limit on values)",
        )
