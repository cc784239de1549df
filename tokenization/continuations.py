"""Which request continues which: by their messages, whatever a template makes of them.

A chat template may rewrite earlier turns (drop their thoughts), so that no rendered prompt begins with another; the
messages that a client sends still do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvtune.tokenization.request import Request

PER_CALL_IDS = (
    "Session or trace ids that change within conversations (or never): conversations found by messages"
)
_MOST_CONTRADICTED = 0.5


class MessageChains:
    """The message lists of requests as chains of digests; a message object that requests share is read once."""

    def __init__(self) -> None:
        self._digests: dict[
            int, tuple[Any, int]
        ] = {}  # identity -> the message, which keeps it, and its digest

    def of(self, request: Request) -> list[int]:
        """A digest for each beginning of the request's messages, the shortest first; [] for other prompts."""
        chain: list[int] = []
        last = hash(request.identity)
        for one in request.messages or ():
            last = hash((last, self._digest(one)))
            chain.append(last)
        return chain

    def _digest(self, message: Any) -> int:
        known = self._digests.get(id(message))
        if known is None:
            known = self._digests[id(message)] = (message, hash(msgspec.json.encode(_without_marks(message))))
        return known[1]


def _without_marks(message: Any) -> Any:
    """A message without cache breakpoints, which clients move along a conversation."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    parts = [
        {key: value for key, value in part.items() if key != "cache_control"}
        if isinstance(part, dict)
        else part
        for part in content
    ]
    text = parts[0].get("text") if len(parts) == 1 and isinstance(parts[0], dict) else None
    return message | {"content": text if isinstance(text, str) else parts}


def find_continued(requests: Sequence[Request]) -> list[int]:
    """For each request the index of the one before it that it continues, -1 where it opens a conversation.

    Of several with the same messages, the latest that nothing continued yet.
    """
    chains = MessageChains()
    ends: dict[int, list[int]] = {}
    continued: list[int] = []
    for index, request in enumerate(requests):
        chain = chains.of(request)
        parent = -1
        for digest in reversed(chain[:-1]):
            waiting = ends.get(digest)
            if waiting:
                parent = waiting.pop() if len(waiting) > 1 else waiting[0]
                break
        continued.append(parent)
        if chain:
            ends.setdefault(chain[-1], []).append(index)
    return continued


def count_directions(requests: Sequence[Request]) -> tuple[int, int]:
    """How many requests continue one before them in this order, and how many one after them."""
    onward = sum(one >= 0 for one in find_continued(requests))
    backward = sum(one >= 0 for one in find_continued(requests[::-1]))
    return onward, backward


def name_conversations(requests: Sequence[Request]) -> int:
    """Sets `session` of requests in replay order; gives how many ids of the log the messages contradict.

    Ids that the log gives stay, unless they change within conversations or are one for all of several.
    """
    continued = find_continued(requests)
    dropped = 0
    if _are_no_conversations(requests, continued):
        for request in requests:
            dropped += request.session is not None
            request.session = None
    for request, parent in zip(requests, continued, strict=True):
        if request.session is None and parent >= 0:
            first = requests[parent]
            first.session = first.session or first.id
            request.session = first.session
    return dropped


def _are_no_conversations(requests: Sequence[Request], continued: Sequence[int]) -> bool:
    pairs = [
        (request.session, requests[parent].session)
        for request, parent in zip(requests, continued, strict=True)
        if parent >= 0 and request.session is not None and requests[parent].session is not None
    ]
    if not pairs:
        return False  # nothing to hold against the ids
    if sum(one != other for one, other in pairs) > _MOST_CONTRADICTED * len(pairs):
        return True
    named = [index for index, request in enumerate(requests) if request.session is not None]
    opened = sum(continued[index] < 0 for index in named)
    return opened > 1 and len({requests[index].session for index in named}) == 1
