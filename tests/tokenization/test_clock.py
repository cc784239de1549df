"""Times as logs write them, against `datetime` and by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtune.tokenization.clock import Moment, decide_unit, moment
from kvtune.tokenization.rejects import RecordError


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1)),
    st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-8))]),
    st.sampled_from(["T", " "]),
)
def test_iso_times(time: datetime, zone: timezone | None, between: str) -> None:
    stamped = time.replace(tzinfo=zone)
    found = moment(stamped.isoformat(between), "t")
    wanted = (stamped if zone else stamped.replace(tzinfo=UTC)).timestamp()
    assert found is not None and found.unit == "s" and found.iso
    assert found.value == pytest.approx(wanted, abs=1e-6)
    assert moment(stamped, "t") == Moment(wanted, "s", iso=True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2023-11-16 18:17:03.9799600", 1700158623.97996),  # Azure's seven digits
        ("2026-01-02T03:04:05.123456789Z", 1767323045.123456789),
        ("2026-01-02 03:04:05 UTC", 1767323045.0),
        ("2026-01-02T03:04:05z", 1767323045.0),
        ("2026-01-02", 1767312000.0),
        ("1970-01-01T00:00:00Z", 0.0),
    ],
)
def test_times_by_hand(text: str, seconds: float) -> None:
    found = moment(text, "t")
    assert found is not None
    assert found.value == pytest.approx(seconds, abs=2e-7)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "not_a_number"),
        (float("-inf"), "not_a_number"),
        ("nan", "not_a_number"),
        (10**40, "not_a_number"),
        (True, "not_a_time"),
        ({}, "not_a_time"),
        ("", "not_a_time"),
        ("yesterday", "not_a_time"),
        ("2026-13-01T00:00:00Z", "not_a_time"),
        ("9" * 5000, "not_a_time"),
    ],
)
def test_what_is_no_time(value: Any, reason: str) -> None:
    with pytest.raises(RecordError) as caught:
        moment(value, "t")
    assert (caught.value.reason, caught.value.field) == (reason, "t")


def test_no_time() -> None:
    assert moment(None, "t") is None


def test_whole_numbers_stay_whole() -> None:
    assert moment(1767323045123456789, "t", "ns") == Moment(1767323045123456789, "ns")


@given(st.floats(1.0e9, 4e9), st.sampled_from(["s", "ms", "us", "ns"]))
def test_the_unit_of_epoch_times(seconds: float, unit: str) -> None:
    scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    assert decide_unit([seconds * scale]) == unit


@given(st.lists(st.floats(0, 1e8), min_size=1))
def test_small_numbers_are_seconds(numbers: list[float]) -> None:
    assert decide_unit(numbers) == "s"
