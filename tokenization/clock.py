"""Timestamps of any kind to seconds: ISO 8601, and numbers whose unit is decided once per file.

A time without a zone is UTC. Knows no format; a format may say what unit its numbers have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kvtune.tokenization.rejects import RecordError, describe

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

# Today's epoch time is 1.7e9 s: each unit owns the three decades around its own, anything smaller counts from
# the trace's start and is in seconds unless the format says otherwise.
_FROM = (("ns", 1e17), ("us", 1e14), ("ms", 1e11))

_GREATEST = 10**30
_LONGEST = 64  # characters of a time

# "01/Dec/2026:05:00:00 +0000", as web servers' common log format has it (nginx's $time_local)
_COMMON_LOG = re.compile(r"(\d\d)/([A-Za-z]{3})/(\d{4}):(\d\d:\d\d:\d\d) ([+-]\d\d)(\d\d)$")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_FRACTION = re.compile(r"([.,]\d+)")
_ZONE_NAME = re.compile(r"\s*(UTC|GMT|Z)$", re.IGNORECASE)


class Moment(NamedTuple):
    """A time as logged: `value` in `unit`, or in a unit to be decided for the whole file (None).

    Whole numbers stay whole: nanoseconds since 1970 are more than a float holds.
    """

    value: float | int
    unit: str | None = None
    iso: bool = False


def moment(value: Any, field: str, unit: str | None = None) -> Moment | None:
    """Reads a timestamp; None stays None. Raises `RecordError` where it is neither a number nor a time.

    `unit` is what the format says of its plain numbers.
    """
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value, field, unit)
    if isinstance(value, datetime):
        return Moment((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp(), "s", iso=True)
    if isinstance(value, str):
        text = value.strip()
        if len(text) > _LONGEST:
            raise RecordError(
                "not_a_time", field, found=describe(value), wanted="a number or an ISO 8601 time"
            )
        try:
            return _number(int(text) if text.isdecimal() else float(text), field, unit)
        except ValueError:
            return Moment(_iso_seconds(text, field), "s", iso=True)
    raise RecordError("not_a_time", field, found=describe(value), wanted="a number or an ISO 8601 time")


def _number(value: float | int, field: str, unit: str | None) -> Moment:
    if not -_GREATEST < value < _GREATEST:
        raise RecordError("not_a_number", field, found=describe(value), wanted="a finite number")
    return Moment(value, unit)


def _iso_seconds(text: str, field: str) -> float:
    """Seconds since 1970 of an ISO 8601 time, kept to the microsecond; more digits are rounded."""
    common = _COMMON_LOG.match(text)
    if common and common[2].title() in _MONTHS:
        month = _MONTHS.index(common[2].title()) + 1
        text = f"{common[3]}-{month:02}-{common[1]}T{common[4]}{common[5]}:{common[6]}"
    plain = _ZONE_NAME.sub("+00:00", text)
    fraction = _FRACTION.search(plain)
    extra = 0.0
    if fraction:
        # datetime keeps six digits; Azure's log has seven.
        extra = float("0." + fraction.group(1)[1:])
        plain = plain[: fraction.start()] + plain[fraction.end() :]
    try:
        parsed = datetime.fromisoformat(plain)
    except ValueError:
        raise RecordError(
            "not_a_time", field, found=describe(text), wanted="a number or an ISO 8601 time"
        ) from None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return parsed.timestamp() + extra


def decide_unit(numbers: Sequence[float]) -> str:
    """The unit of a file's plain numbers, by the middle one, so that one wild value decides nothing."""
    middle = abs(sorted(numbers)[len(numbers) // 2])
    return next((unit for unit, least in _FROM if middle >= least), "s")
