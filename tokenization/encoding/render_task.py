"""What a worker does with chats that are handed to it while a trace is read: `render_ahead` is the other end.

    (number, chats) -> [to do] -> template -> [held, packed] -> Answer
                                                  ^-- Ask: which chunk is wanted now, which come next, how much room

A worker renders chunk after chunk and holds what it has until it is asked. It leaves alone what more than the chat at
hand decides (the request's time, which is settled when all are read; media, whose placeholders the vocabulary knows)
and all that is refused.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NamedTuple

from kvtune.tokenization.chat_template.template import TemplateRefusedError
from kvtune.tokenization.encoding.prompt_encoder import PromptEncoder, Rendered
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.request import Request

MOST_HELD = 1 << 25
"""Characters that either end holds for later."""


class Packed(NamedTuple):
    """A rendered chat as what it has more than the one before it. `rest` is None for a chat that was left alone."""

    shared: int
    rest: str | None
    tool_texts: list[str]


Chunk = list[Packed]


class Ask(NamedTuple):
    """The chunk that is wanted now, those that will be wanted next, and how many more characters may come with it."""

    number: int
    following: Sequence[int]
    room: int


class Answer(NamedTuple):
    """Chunks by number, and the numbers of those that the asking end is to render itself."""

    chunks: list[tuple[int, Chunk]]
    left: list[int]


@dataclass(frozen=True)
class RenderTask:
    """Renders with what `open_encoder` gives."""

    open_encoder: Callable[[], PromptEncoder]

    def serve(self, pipe: Connection) -> None:
        """Take numbered chunks of chats, and answer for one of them at a time, until None comes."""
        try:
            encoder = self.open_encoder()
        except UnusableInputError:
            encoder = None  # who asks opens one, too, and says why that fails
        limit = sys.getrecursionlimit()
        # What recurses deeply is for the other end, whose stack is not as empty: both must refuse the same.
        sys.setrecursionlimit(limit // 2)
        try:
            _Renderer(pipe, encoder).run()
        finally:
            sys.setrecursionlimit(limit)


class _Renderer:
    def __init__(self, pipe: Connection, encoder: PromptEncoder | None) -> None:
        self._pipe = pipe
        self._encoder = encoder
        self._to_do: OrderedDict[int, list[Request]] = OrderedDict()
        self._held = _Held()
        self._current: int | None = None
        self._deferred: Ask | None = None

    def run(self) -> None:
        while self._hear(wait=self._is_idle):
            if self._is_idle:
                continue
            number, chats = self._to_do.popitem(last=False)
            self._current = number
            chunk: Chunk = []
            for chat in packed(map(self._rendered, chats)):
                chunk.append(chat)
                if not self._hear(wait=False):
                    return
            self._held.put(number, chunk)
            self._current = None
            if self._encoder is not None:
                self._encoder.forget_messages()
            if self._deferred is not None:
                self._answer(self._deferred)
                self._deferred = None

    def _rendered(self, chat: Request) -> Rendered | None:
        """What the template writes, if nothing but this chat decides it."""
        encoder = self._encoder
        if encoder is None:
            return None
        dates = encoder.untimed_dates
        try:
            prompt = encoder.render(chat)
        except UnusableInputError as error:
            if isinstance(error, TemplateRefusedError) and error.is_limit:
                self._encoder = None  # each costs seconds, and only the other end counts them: not twice
            return None
        except RecursionError:
            return None
        if prompt.conversation.media or encoder.untimed_dates != dates:
            return None
        return Rendered(prompt.text, prompt.tool_texts)

    @property
    def _is_idle(self) -> bool:
        return not self._to_do or self._held.chars >= MOST_HELD

    def _hear(self, *, wait: bool) -> bool:
        """Take in what has come, or wait for something; False at the end."""
        while self._pipe.poll(None if wait else 0):
            wait = False
            message = self._pipe.recv()
            if message is None:
                return False
            if not isinstance(message, Ask):
                number, chats = message
                self._to_do[number] = chats
            elif message.number == self._current:
                self._deferred = message
            else:
                self._answer(message)
        return True

    def _answer(self, ask: Ask) -> None:
        chunks = self._held.pop_some(ask.number, ask.room)
        # Who wants chunks as fast as they are rendered had better render some, too.
        is_caught_up = len(chunks) <= 1
        wanted = (ask.number, *(ask.following if is_caught_up else ()))
        left = [number for number in wanted if self._to_do.pop(number, None) is not None]
        self._pipe.send(Answer(chunks, left))


class _Held:
    """Chunks by number, in the order in which they came; `chars` in all."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[int, Chunk] = OrderedDict()
        self.chars = 0

    def put(self, number: int, chunk: Chunk) -> None:
        """Hold one more."""
        self._chunks[number] = chunk
        self.chars += chars_of(chunk)

    def pop_some(self, first: int, room: int) -> list[tuple[int, Chunk]]:
        """Let go of `first`, if it is here, and of the oldest others, as long as there is room."""
        numbers = [first] if first in self._chunks else []
        for number, chunk in self._chunks.items():
            if number != first:
                room -= chars_of(chunk)
                if room < 0:
                    break
                numbers.append(number)
        some = [(number, self._chunks.pop(number)) for number in numbers]
        self.chars -= sum(chars_of(chunk) for _, chunk in some)
        return some


def chars_of(chunk: Chunk) -> int:
    """Characters that a chunk holds."""
    return sum(len(chat.rest) for chat in chunk if chat.rest is not None)


def packed(chats: Iterable[Rendered | None]) -> Iterator[Packed]:
    """The chats of a chunk: a turn repeats the turns before it, which are held, and sent, once."""
    before = ""
    for chat in chats:
        if chat is None:
            yield Packed(0, None, [])
        else:
            shared = _common_start(before, chat.text)
            yield Packed(shared, chat.text[shared:], chat.tool_texts)
            before = chat.text


def unpacked(chunk: Chunk) -> Iterator[Rendered | None]:
    """The chats again."""
    before = ""
    for shared, rest, tool_texts in chunk:
        if rest is None:
            yield None
        else:
            before = before[:shared] + rest
            yield Rendered(before, tool_texts)


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
