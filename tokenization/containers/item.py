"""What a container gives: records one after another, or the errors that say why there is none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.sources import BrokenStreamError


class Item(NamedTuple):
    """A record or the reason why there is none, where it stands ("file:line"), and its bytes in pieces."""

    where: str
    value: dict[str, Any] | RecordError
    pieces: Iterable[bytes]


def too_long(limit: int) -> RecordError:
    """The error of a line or document over the limit."""
    return RecordError(
        "line_too_long",
        None,
        found=f"more than {limit} bytes",
        wanted=f"at most {limit} bytes (--max-line-bytes)",
    )


def stream_break(error: BrokenStreamError) -> RecordError:
    """The error of the place where a compressed stream breaks."""
    return RecordError(error.reason, None, found=error.found, wanted=error.wanted)


SHIPPED_AT = "shipped_at"
"""The field under which a record carries the time that stood around it in a log shipper's line or object."""

WRAPPER = "wrapper"
"""The field for what else stood in the object that held a record: `--by-field` and its like see it."""


def timed(record: dict[str, Any], time: Any) -> dict[str, Any]:
    """The record with the time that stood around it, where there was one."""
    return record if time is None else {**record, SHIPPED_AT: time}
