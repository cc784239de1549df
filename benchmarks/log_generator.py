"""Logs of any size that cost what real ones cost: chats of many turns, interleaved by time, of real text.

A family is a system prompt of 400 to 5,000 tokens. A session belongs to one, and has 1 to 24 turns that each repeat all
before them and add a user's message and the answer. Every message is cut anew at random words of real texts, and its
digits are drawn anew, so that no two are alike. About a tenth of the prompt tokens is new. Same seed, same bytes.
"""

from __future__ import annotations

import heapq
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from kvtune.tokenization.reading import read_trace

TRACES = Path(__file__).parents[1] / "tests" / "data" / "traces"
CHARS_A_TOKEN = 3.9
"""Of these texts, about: a log's size is met to a few percent."""

_FAMILY_TOKENS = (400, 5_000)
_MOST_TURNS = 24
_TURN_TOKENS = 1_450
_SESSIONS_AT_ONCE = 60
_SESSIONS_A_FAMILY = 150
_MEAN_GAP_S = 20.0
_PIECE_CHARS = (40, 400)
_DIGIT = re.compile("[0-9]")


class RealText:
    """The distinct texts of the bundled traces, cut into messages that never were."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        texts = dict.fromkeys(
            message["content"]
            for path in sorted(TRACES.glob("*.jsonl.gz"))
            for request in read_trace([str(path)]).requests
            for message in request.messages or ()
            if isinstance(message.get("content"), str)
        )
        self._text = "\n".join(texts)

    def message(self, tokens: int) -> str:
        """So many tokens, about."""
        draw, text = self._draw, self._text
        left = int(tokens * CHARS_A_TOKEN)
        pieces: list[str] = []
        while left > 0:
            size = min(draw.randint(*_PIECE_CHARS), left)
            at = text.find(" ", draw.randrange(len(text) - _PIECE_CHARS[1] - 200)) + 1
            end = text.find(" ", at + size)
            pieces.append(text[at : max(end, at + 1)])
            left -= len(pieces[-1]) + 1
        return _DIGIT.sub(lambda _: str(draw.randrange(10)), "\n".join(pieces))


@dataclass(order=True)
class _Session:
    """One conversation. `parts`: its messages so far, as JSON."""

    at: float
    number: int
    turns: int = field(compare=False)
    parts: list[bytes] = field(compare=False)
    tokens: int = field(compare=False)


def write_log(target: BinaryIO, tokens: int, seed: int = 0) -> int:
    """Write a log of about so many prompt tokens; how many requests it has."""
    requests = 0
    for line in log_lines(tokens, seed):
        target.write(line)
        requests += 1
    return requests


def log_lines(tokens: int, seed: int = 0) -> Iterator[bytes]:
    """The lines of a log, a request each, in the order of their times."""
    draw = random.Random(seed)
    real = RealText(draw)
    families: list[tuple[bytes, int]] = []
    started = 0

    def begin(at: float) -> _Session:
        nonlocal started
        if started % _SESSIONS_A_FAMILY < 4 or not families:  # some families at once, more with time
            size = draw.randint(*_FAMILY_TOKENS)
            families.append((_as_json("system", real.message(size)), size))
        started += 1
        head, size = families[-1 - int(draw.expovariate(0.25)) % len(families)]
        return _Session(at, started, draw.randint(1, _MOST_TURNS), [head], size)

    active = [begin(draw.uniform(0, _MEAN_GAP_S)) for _ in range(_SESSIONS_AT_ONCE)]
    heapq.heapify(active)
    written = 0
    while written < tokens:
        session = heapq.heappop(active)
        asked = draw.randint(_TURN_TOKENS // 4, _TURN_TOKENS * 3 // 4)
        session.parts.append(_as_json("user", real.message(asked)))
        session.tokens += asked
        written += session.tokens
        yield _line(session)
        answered = draw.randint(_TURN_TOKENS // 4, _TURN_TOKENS * 3 // 4)
        session.parts.append(_as_json("assistant", real.message(answered)))
        session.tokens += answered
        session.turns -= 1
        session.at += draw.expovariate(1 / _MEAN_GAP_S)
        heapq.heappush(active, session if session.turns else begin(session.at))


def _as_json(role: str, content: str) -> bytes:
    return json.dumps({"role": role, "content": content}, ensure_ascii=False).encode("utf-8", "replace")


def _line(session: _Session) -> bytes:
    head = b'{"timestamp": %.3f, "session_id": "s%d", "model": "model", "messages": [' % (
        1_700_000_000 + session.at,
        session.number,
    )
    return head + b", ".join(session.parts) + b"]}\n"
