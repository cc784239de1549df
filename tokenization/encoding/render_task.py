"""What a worker does with chats that are handed to it while a trace is read: `render_ahead` is the other end.

    chunks of chats -> [to do] -> template -> [held] -> (number, room): that chat, and others for which there is room

A worker renders in the order in which chats come and holds what it has until it is asked. It leaves alone what more
than the chat at hand decides (the request's time, which is settled when all are read; media, whose placeholders the
vocabulary knows) and all that is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

from kvtune.tokenization.encoding.prompt_encoder import PromptEncoder, Rendered
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.request import Request

CHUNK = 32
"""Chats that are sent at a time: turns of one conversation share their messages within it."""

MOST_HELD = 1 << 25
"""Characters that either end holds for later."""

Packed = tuple[int, int, str | None, list[str]]
"""A chat's number, the characters that its text shares with the text before, the rest of it, its tools' texts."""


@dataclass(frozen=True)
class RenderTask:
    """Renders with what `open_encoder` gives."""

    open_encoder: Callable[[], PromptEncoder]

    def serve(self, pipe: Connection) -> None:
        """Take lists of numbered chats and answer for one of them at a time, until None comes."""
        try:
            encoder = self.open_encoder()
        except UnusableInputError:
            encoder = None  # who asks opens one, too, and says why that fails
        to_do: dict[int, Request] = {}
        held = Held()
        while True:
            while pipe.poll(0 if to_do and held.chars < MOST_HELD else None):
                message = pipe.recv()
                if message is None:
                    return
                if isinstance(message, list):
                    to_do.update(message)
                else:
                    number, room = message
                    to_do.pop(number, None)  # done where it is wanted, if it is not done yet
                    pipe.send(_packed(held.pop_some(number, room)))
            number = next(iter(to_do))
            held.put(number, _rendered(encoder, to_do.pop(number)))
            if encoder is not None and not number % CHUNK:
                encoder.forget_messages()


def _rendered(encoder: PromptEncoder | None, request: Request) -> Rendered | None:
    """What the template writes, if nothing but this chat decides it."""
    if encoder is None:
        return None
    dates = encoder.untimed_dates
    try:
        prompt = encoder.render(request)
    except UnusableInputError:
        return None
    if prompt.conversation.media or encoder.untimed_dates != dates:
        return None
    return Rendered(prompt.text, prompt.tool_texts)


class Held:
    """Rendered chats by number, in the order in which they came; `chars` of texts in all."""

    def __init__(self) -> None:
        self._by_number: dict[int, Rendered | None] = {}
        self.chars = 0

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    def put(self, number: int, rendered: Rendered | None) -> None:
        """Hold one more."""
        self._by_number[number] = rendered
        self.chars += _chars(rendered)

    def pop(self, number: int) -> Rendered | None:
        """Let go of one; None also where it is not here."""
        rendered = self._by_number.pop(number, None)
        self.chars -= _chars(rendered)
        return rendered

    def pop_some(self, first: int, room: int) -> list[tuple[int, Rendered | None]]:
        """Let go of `first`, if it is here, and of the oldest others, as long as there is room."""
        numbers = [first] if first in self else []
        for number, rendered in self._by_number.items():
            room -= _chars(rendered)
            if room < 0:
                break
            if number != first:
                numbers.append(number)
        return [(number, self.pop(number)) for number in numbers]


def _chars(rendered: Rendered | None) -> int:
    return len(rendered.text) if rendered is not None else 0


def _packed(chats: list[tuple[int, Rendered | None]]) -> list[Packed]:
    """Each text as what it has more than the one before: a turn repeats the turns before it."""
    packed: list[Packed] = []
    before = ""
    for number, rendered in chats:
        if rendered is None:
            packed.append((number, 0, None, []))
            continue
        shared = _common_start(before, rendered.text)
        packed.append((number, shared, rendered.text[shared:], rendered.tool_texts))
        before = rendered.text
    return packed


def unpacked(packed: list[Packed]) -> Iterator[tuple[int, Rendered | None]]:
    """An answer's chats."""
    before = ""
    for number, shared, rest, tool_texts in packed:
        if rest is None:
            yield number, None
        else:
            before = before[:shared] + rest
            yield number, Rendered(before, tool_texts)


def _common_start(one: str, other: str) -> int:
    """How many characters both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
