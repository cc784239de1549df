"""Prompts that a log shortened, told when a whole file is read: by marks of the software, by ends, by equal lengths.

A prompt that was cut looks shared where it was not and ends where it did not: it is rejected, never read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from kvtune.tokenization.formats.format import Lost
from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.request import Request

_LITELLM = re.compile(r"\(litellm_truncated skipped \d+ chars")
_LITELLM_WANTED = "whole prompts (MAX_STRING_LENGTH_PROMPT_IN_DB above the longest, on the LiteLLM proxy)"
_WHOLE_VALUES = {
    "<truncated due to size exceeding limit>": "whole prompts (Langfuse drops events over its size limit)",
    "[This value has been dropped because this span's size exceeds the 1MB size limit.]": "whole prompts "
    "(Datadog drops values of spans over 1 MB)",
}
_MARK = re.compile(r"[\[(<]truncated[\])>]$", re.IGNORECASE)
_LONGEST_END = 24
_LEAST_LIMIT = 64  # characters; no log cuts shorter
_LEAST_SAME = 3  # this many different texts of exactly the greatest length are no chance
_ROUND = frozenset({*(2**power for power in range(7, 21)), *(2**power - 1 for power in range(8, 21))})


class _Text(NamedTuple):
    """A text of a prompt; `own` where nobody but the log would have cut it (not a tool's output)."""

    text: str
    own: bool


def find_cut(requests: Sequence[Request]) -> Iterator[Lost]:
    """The requests of one file whose prompts the log did not keep whole. Messages that requests share are read once."""
    parts: dict[int, Any] = {}  # by identity, which the requests keep alive
    for request in requests:
        for held in (request.messages or (), request.tools or ()):
            parts.update(zip(map(id, held), held, strict=True))
    texts = {key: _texts_of(part) for key, part in parts.items()}
    plain = {id(request): [_Text(request.text, own=True)] for request in requests if request.text is not None}
    limit = _limit({held for those in (texts, plain) for many in those.values() for held in many})
    cut = {
        key: wanted
        for those in (texts, plain)
        for key, many in those.items()
        if (wanted := _first_cut(many, limit))
    }
    if not cut:
        return
    for request in requests:
        keys = (id(request), *map(id, request.messages or ()), *map(id, request.tools or ()))
        wanted = next((cut[key] for key in keys if key in cut), None)
        if wanted is not None:
            error = RecordError("truncated_prompt", None, found="a shortened text", wanted=wanted)
            yield Lost(request.source, error, request)


def _first_cut(texts: Sequence[_Text], limit: int | None) -> str | None:
    return next((wanted for held in texts if (wanted := _why_cut(held, limit)) is not None), None)


def _why_cut(held: _Text, limit: int | None) -> str | None:
    """What the log should have kept, None for a whole text."""
    text = held.text
    if "truncated" in text and _LITELLM.search(text):
        return _LITELLM_WANTED
    if text in _WHOLE_VALUES:
        return _WHOLE_VALUES[text]
    if limit is not None and len(text) >= limit - _LONGEST_END and (len(text) == limit or _ends_cut(text)):
        return f"whole prompts (this log cuts texts at {limit:,} characters)"
    return None


def _limit(distinct: Iterable[_Text]) -> int | None:
    """The length at which a log cuts, None where nothing says that it does.

    Texts that end like cut ones must be the longest of the file: an ellipsis after which others go on is a writer's.
    """
    longest_whole = 0
    same: dict[int, int] = {}
    ends: dict[int, int] = {}
    for text, own in distinct:
        length = len(text)
        if length < _LEAST_LIMIT or text.startswith("data:"):
            continue
        if own and _ends_cut(text):
            # A mark in words says it alone; three dots are said by writers too.
            ends[length] = ends.get(length, 0) + (_LEAST_SAME if _has_mark(text) else 1)
        else:
            longest_whole = max(longest_whole, length)
        same[length] = same.get(length, 0) + 1
    cut = max(ends, default=0)
    if cut >= max(longest_whole, 1) and ends[cut] >= _LEAST_SAME:
        return cut
    greatest = max(same, default=0)
    if greatest and same[greatest] >= _LEAST_SAME and (greatest in _ROUND or greatest % 500 == 0):
        return greatest
    return None


def _ends_cut(text: str) -> bool:
    return text.endswith(("...", "…")) or _has_mark(text)


def _has_mark(text: str) -> bool:
    return text.endswith(("]", ")", ">")) and _MARK.search(text[-_LONGEST_END:]) is not None


def _texts_of(part: Any) -> list[_Text]:
    """All texts of a message or a tool."""
    own = part.get("role") not in ("tool", "function")
    return [_Text(text, own) for text in _strings(part)]


def _strings(value: Any) -> Iterator[str]:
    """Every text in a message or a tool, however deep."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
