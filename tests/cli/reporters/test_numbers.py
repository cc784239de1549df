"""How numbers and foreign text are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtune.cli.reporters.numbers import (
    clean,
    count,
    interval,
    listing,
    percent,
    plural,
    seconds,
    share,
    signed,
)


def test_counts_have_thousands_separators_and_a_dash_for_none() -> None:
    assert count(1_234_567) == "1,234,567"
    assert count(408.6) == "409"
    assert count(None) == "–"


def test_differences_carry_their_sign() -> None:
    assert [signed(value) for value in (1_200, 0, -1_200, None)] == ["+1,200", "0", "−1,200", "–"]


def test_fractions_are_per_cent_with_one_decimal() -> None:
    assert percent(0.13549) == "13.5%"
    assert percent(-0.02) == "−2.0%"
    assert percent(-0.0001) == "0.0%"
    assert percent(-0.1) == "−10.0%"
    assert share(1, 3) == "33.3%"
    assert share(1, 0) == "–"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (0.0421, "42.1 ms"),
        (0.3, "0.3 s"),
        (6.42, "6.42 s"),
        (3600, "60 min"),
        (8130, "2 h 16 min"),
        (172_800, "2 days"),
    ],
)
def test_times_take_the_unit_that_suits_them(value: float, text: str) -> None:
    assert seconds(value) == text


def test_words() -> None:
    assert plural(1, "line") == "1 line"
    assert plural(1_200, "family", "families") == "1,200 families"
    assert listing(["a", "b", "c"]) == "a, b and c"
    assert listing([]) == ""
    assert interval((-5, 1_000)) == "−5 to 1,000"


def test_foreign_text_cannot_steer_a_terminal() -> None:
    assert clean("a\x1b[31mb\x07\n c\u202ed") == "a�[31mb� c�d"


@given(st.text())
def test_cleaned_text_is_one_printable_line(text: str) -> None:
    assert all(char.isprintable() for char in clean(text).replace("�", ""))
