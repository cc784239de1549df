"""Which special tokens another could claim a part of: against the definition, spelled out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtune.tokenization.tokenizers.vocabulary import claimable


@pytest.mark.parametrize(
    ("tokens", "claimed"),
    [
        (["<a>", "<b>"], set()),
        (["<a>", "x<a>"], {"<a>"}),
        (["<a>", "<a>b"], {"<a>"}),
        (["<a>", "x<"], {"<a>"}),
        (["<a>", ">b"], {">b"}),
        (["aa", "<"], set()),
        ([], set()),
    ],
)
def test_examples(tokens: list[str], claimed: set[str]) -> None:
    assert claimable(tokens) == claimed


@given(st.lists(st.text("ab<", min_size=1, max_size=5), unique=True, max_size=7))
def test_the_definition(tokens: list[str]) -> None:
    expected = {
        token
        for token in tokens
        for other in tokens
        if other != token
        and (
            token in other
            or any(
                other[at:] == token[: len(other) - at]
                for at in range(1, len(other))
                if len(other) - at < len(token)
            )
        )
    }
    assert claimable(tokens) == expected


def test_thousands_of_tokens_take_no_time_to_speak_of() -> None:
    assert claimable([f"<unused{number}>" for number in range(5000)]) == set()
