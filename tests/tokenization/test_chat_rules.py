"""Rules per release: which version has which."""

from __future__ import annotations

import pytest

from kvtune.tokenization.chat_rules import chat_rules
from kvtune.tokenization.errors import UnusableInputError


@pytest.mark.parametrize(
    ("version", "malformed", "billing", "macros"),
    [
        ("0.28", "refuse", False, False),
        ("0.29.0", "empty", False, False),
        ("0.30", "empty", False, True),
        ("0.31.2", "empty", False, True),
        ("0.32.0", "empty", True, True),
        ("0.33", "empty", True, True),
        ("1.0", "empty", True, True),
    ],
)
def test_rules_of_a_release(version: str, malformed: str, billing: bool, macros: bool) -> None:
    rules = chat_rules(version)
    assert (rules.malformed_arguments, rules.strips_billing_header, rules.follows_macros) == (
        malformed,
        billing,
        macros,
    )


def test_without_a_version_the_newest_rules_count() -> None:
    assert chat_rules() == chat_rules("0.33")


def test_a_version_that_is_none_is_named() -> None:
    with pytest.raises(
        UnusableInputError, match=r"--engine-version: not a release \(found newest, wanted X.Y"
    ):
        chat_rules("newest")
