"""What kind of text varies where prompts part: a class that may be reported, unlike the text itself.

Rules are tried in order; the first that fits the whole of the varying text, or most of it, names it.
"""

from __future__ import annotations

import re
from typing import Literal

TextClass = Literal[
    "date and time",
    "date",
    "time",
    "percentage",
    "number",
    "identifier",
    "tool definition",
    "white space",
    "text",
]

_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DAY = (
    r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}"
    rf"|\d{{1,2}}\.? {_MONTH}\.?,? \d{{2,4}}|{_MONTH}\.? \d{{1,2}},? \d{{2,4}})"
)
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)? ?(?:[ap]m|z|utc|[+-]\d{2}:?\d{2})?"

_PATTERNS: tuple[tuple[TextClass, str], ...] = (
    ("date and time", rf"{_DAY}[t ,]+{_TIME}"),
    ("date", _DAY),
    ("time", _TIME),
    ("percentage", r"\d+(?:\.\d+)? ?%"),
    ("identifier", r"(?=[\w-]*\d)(?=[\w-]*[a-z])[\w-]{8,}|[0-9a-f]{8}-[0-9a-f-]{20,}|\d{10,}"),
    ("tool definition", r'"(?:type|function|name|description|parameters|properties)" ?:'),
    ("number", r"[-+]?\d[\d,._]*"),
)
_RULES = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _PATTERNS)


def classify(context: str, start: int, end: int) -> TextClass:
    """The class of `context[start:end]`, where prompts part, seen with the text around it.

    A token boundary may cut a date or an id: a match that overlaps the span counts, wherever it begins.
    """
    if not context[start:end].strip():
        return "white space"
    for name, pattern in _RULES:
        for match in pattern.finditer(context):
            if match.start() < end and match.end() > start:
                return name
    return "text"
