"""JSON inside a string, as many logs keep bodies and messages; bounded like the lines themselves."""

from __future__ import annotations

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
