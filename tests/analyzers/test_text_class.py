"""Classes of varying text."""

from __future__ import annotations

import pytest

from kvtune.analyzers.text_class import classify


@pytest.mark.parametrize(
    ("before", "varying", "after", "wanted"),
    [
        ("Today is ", "2026-11-30", ".", "date"),
        ("Today is 2026-11-", "30", ".", "date"),
        ("Today is ", "30 November 2026", "", "date"),
        ("Now: ", "2026-11-30T07:58", ":03Z", "date and time"),
        ("Now: 07:", "58", " on a Monday", "time"),
        ("memory used: ", "49", "% of 2,200", "percentage"),
        ("session ", "a81c-99f0e2", " starts", "identifier"),
        ("user ", "1048", " asks", "number"),
        ('{"type": "function", "function": {"name": "', "get_flight", '"}}', "text"),
        ('[{"', "type", '": "function"', "tool definition"),
        ("a", "  \n", "b", "white space"),
        ("Please ", "book", " a seat", "text"),
    ],
)
def test_classes(before: str, varying: str, after: str, wanted: str) -> None:
    context = before + varying + after
    assert classify(context, len(before), len(before) + len(varying)) == wanted
