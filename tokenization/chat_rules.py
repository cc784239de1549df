"""What a vLLM release does to a chat request before its template sees it, as data.

A release profile names a version; `chat_rules(version)` gives the rules. Code asks the rules, never the
version. Facts from the chat front ends of vLLM 0.24 to 0.33. Knows nothing about Jinja or token ids.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from kvtune.tokenization.errors import UnusableInputError


@dataclass(frozen=True)
class ChatRules:
    """Attributes:
    since: first release with these rules, (major, minor).
    malformed_arguments: what tool-call arguments that are no JSON at all become: "empty" (`{}`) or
        "refuse" (the request fails).
    strips_billing_header: the first line of a system text is dropped when it is a coding client's
        billing header, which changes with every request.
    follows_macros: the content-format detection follows a message's content into macro parameters.
    """

    since: tuple[int, int]
    malformed_arguments: Literal["empty", "refuse"]
    strips_billing_header: bool
    follows_macros: bool


BILLING_HEADER = "x-anthropic-billing-header"
"""A system text whose first line starts so carries a per-request value (a public client's header)."""

_FIRST = ChatRules(
    since=(0, 0), malformed_arguments="refuse", strips_billing_header=False, follows_macros=False
)
_TOLERANT = replace(_FIRST, since=(0, 29), malformed_arguments="empty")
_MACROS = replace(_TOLERANT, since=(0, 30), follows_macros=True)
_NO_BILLING = replace(_MACROS, since=(0, 32), strips_billing_header=True)

RULES: tuple[ChatRules, ...] = (_FIRST, _TOLERANT, _MACROS, _NO_BILLING)
"""Ascending by `since`."""


def chat_rules(version: str | None = None) -> ChatRules:
    """The rules of a release such as "0.33" or "0.33.0"; the newest without a version.

    Raises:
        UnusableInputError: the text is no version.
    """
    if version is None:
        return RULES[-1]
    parsed = re.match(r"(\d+)\.(\d+)", version)
    if parsed is None:
        raise UnusableInputError(
            "not a release", field="--engine-version", found=version[:40], wanted="X.Y, for example 0.33"
        )
    release = (int(parsed[1]), int(parsed[2]))
    return next(rules for rules in reversed(RULES) if rules.since <= release)
