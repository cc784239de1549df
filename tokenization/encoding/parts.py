"""Which part of a rendered prompt a token belongs to: tools, a message of some role, or the template around them.

The texts of the messages are looked for in the rendered prompt, from its end backwards, and only where the prompt
is new; every text between them is the template's. A text that stands in the prompt in another form (escaped,
rewritten) is not found and counts as the template's. Knows texts and positions; how they were encoded is told.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from kvtune.tokenization.request import Message
from kvtune.tokenization.tokenizers.vocabulary import byte_length
from kvtune.tokenization.trace import PARTS, Int64

_TAIL_CHARS = 24
_MAX_TRIES = 32
_MAX_MISSES = 64
"""Texts that may be missing in a prompt before the search is given up: each costs a pass over it."""

_CODE = {part: code for code, part in enumerate(PARTS)}
TEMPLATE = _CODE["template"]
USER = _CODE["user"]
_TOOLS = _CODE["tools"]
_ROLE = {
    "system": _CODE["system"],
    "developer": _CODE["system"],
    "user": USER,
    "assistant": _CODE["assistant"],
    "tool": _CODE["tool"],
    "function": _CODE["tool"],
}


class Span(NamedTuple):
    """Characters [start, end) of a prompt that belong to part `code`."""

    start: int
    end: int
    code: int


def spans_from(text: str, messages: Sequence[Message], tool_texts: Sequence[str], floor: int) -> list[Span]:
    """The spans of a rendered prompt that end after character `floor`, ascending, apart.

    Args:
        messages: as the template saw them.
        tool_texts: dumps of the tools, in order, as far as the template made any.
    """
    found: list[Span] = []
    tools = _tools_span(text, tool_texts)
    if tools is not None and tools.end > floor:
        found.append(tools)
    limit = len(text)
    misses = 0
    for message in reversed(messages):
        code = _ROLE.get(message["role"], TEMPLATE)
        for needle in _texts_from_the_end(message):
            start = _find_back(text, needle, limit)
            # What a tool is called stands in its definition, too.
            if start >= 0 and not (
                tools is not None and start < tools.end and tools.start < start + len(needle)
            ):
                found.append(Span(start, start + len(needle), code))
                limit = start
            else:
                misses += 1
        if limit <= floor or misses > _MAX_MISSES:
            break
    found.sort()
    return found


def _tools_span(text: str, tool_texts: Sequence[str]) -> Span | None:
    """From the first tool to the last one; None where they do not stand in the prompt as they were dumped."""
    start = end = text.find(tool_texts[0]) if tool_texts else -1
    for tool in tool_texts:
        at = text.find(tool, end) if end >= 0 else -1
        if at < 0:
            return None
        end = at + len(tool)
    return Span(start, end, _TOOLS) if end >= 0 else None


def _find_back(text: str, needle: str, limit: int) -> int:
    """Where `needle` stands last before `limit`, -1 where it is not found.

    Searching backwards for long texts can take quadratic time; a short end of it is looked for instead, at a
    few places.
    """
    tail = needle[-_TAIL_CHARS:]
    stop = limit
    for _ in range(_MAX_TRIES):
        at = text.rfind(tail, 0, stop)
        start = at + len(tail) - len(needle)
        if at < 0 or start < 0:
            return -1
        if text.startswith(needle, start):
            return start
        stop = at + len(tail) - 1
    return -1


def _texts_from_the_end(message: Message) -> Iterator[str]:
    """Texts of one message in the order in which they stand in the prompt, last first."""
    for call in reversed(message.get("tool_calls") or ()):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            arguments = function.get("arguments")
            if isinstance(arguments, dict):
                for value in reversed(arguments.values()):
                    if isinstance(value, str) and value:
                        yield value
            if isinstance(function.get("name"), str) and function["name"]:
                yield function["name"]
    content = message.get("content")
    if isinstance(content, str):
        yield from _trimmed(content)
    elif isinstance(content, list):
        for part in reversed(content):
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield from _trimmed(part["text"])
    reasoning = message.get("reasoning_content")
    if isinstance(reasoning, str):
        yield from _trimmed(reasoning)


def _trimmed(text: str) -> Iterator[str]:
    """Templates often trim what they write; the trimmed text stands in both."""
    text = text.strip()
    if text:
        yield text


def cut_spans(spans: Sequence[Span], start: int, end: int) -> list[Span]:
    """The spans inside characters [start, end), relative to `start`."""
    return [
        Span(max(span.start, start) - start, min(span.end, end) - start, span.code)
        for span in spans
        if span.start < end and span.end > start
    ]


Runs = tuple[list[int], list[int]]
"""Tokens of one part after another: their ascending ends, and their codes."""

ALL_USER: Runs = ([1 << 40], [USER])
"""A prompt without structure."""


class PromptParts:
    """A `PartIndex`: per request the pieces of its prompt, which many requests share."""

    def __init__(self) -> None:
        self._starts: list[array[int]] = []
        self._runs: list[list[Runs]] = []

    def add_row(self, starts: array[int], runs: list[Runs]) -> None:
        """The next request: the first token of each piece, ascending from at most 0, and the piece's runs.

        Tokens after a piece's last run are the template's.
        """
        self._starts.append(starts)
        self._runs.append(runs)

    def part_of(self, request: int, position: int) -> str:
        """The part of token `position` of request `request`, both from 0."""
        starts = self._starts[request]
        piece = max(bisect_right(starts, position) - 1, 0)
        ends, codes = self._runs[request][piece]
        at = bisect_right(ends, position - starts[piece])
        return PARTS[codes[at] if at < len(codes) else TEMPLATE]

    def runs(self, request: int, length: int) -> list[tuple[int, str]]:
        """The whole prompt of `length` tokens: (end, part) of each run of tokens of one part, ascending."""
        starts = self._starts[request]
        stops = [*starts[1:], length]
        found: list[tuple[int, str]] = []
        done = 0
        for start, stop, (ends, codes) in zip(starts, stops, self._runs[request], strict=True):
            for end, code in (*zip(ends, codes, strict=True), (stop - start, TEMPLATE)):
                at = min(start + end, stop)
                if at <= done:
                    continue
                if found and found[-1][1] == PARTS[code]:
                    found.pop()
                found.append((at, PARTS[code]))
                done = at
        return found


def runs_of(spans: Sequence[Sequence[Span]], texts: Sequence[str], ends: Sequence[Int64]) -> list[Runs]:
    """The runs of each of many pieces of text.

    Args:
        spans: of each piece, in characters of its text, none empty.
        ends: of each piece int64[n], where each of its tokens ends in UTF-8 bytes.
    """
    if not texts:
        return []
    sizes = list(map(byte_length, texts))
    counts = [len(own) for own in ends]
    # All pieces one behind the other, so that two searches serve them all.
    bytes_before = np.cumsum([0, *sizes[:-1]])
    tokens_before = np.cumsum([0, *counts[:-1]])
    owner = np.repeat(np.arange(len(texts)), [len(own) for own in spans])
    borders = np.array(
        [border for own, text in zip(spans, texts, strict=True) for border in _byte_borders(own, text)]
    ).reshape(-1, 2)
    at = bytes_before[owner, np.newaxis] + borders
    all_ends = np.concatenate(ends) + np.repeat(bytes_before, counts)
    starts = np.searchsorted(all_ends, at[:, 0], side="right") - tokens_before[owner]
    stops = np.searchsorted(all_ends, at[:, 1], side="left") + 1 - tokens_before[owner]
    run_ends = np.stack((starts, np.minimum(stops, np.array(counts)[owner])), axis=1).ravel().tolist()
    runs: list[Runs] = []
    done = 0
    for own in spans:
        runs.append(
            (run_ends[done : done + 2 * len(own)], [code for s in own for code in (TEMPLATE, s.code)])
        )
        done += 2 * len(own)
    return runs


def _byte_borders(spans: Sequence[Span], text: str) -> list[int]:
    """Where spans begin and end in a text, in bytes, one after another."""
    borders = [border for span in spans for border in (span.start, span.end)]
    return borders if text.isascii() else [byte_length(text[:at]) for at in borders]
