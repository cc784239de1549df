"""Chats rendered by workers, from the moment that they are read; `render_task` is what a worker does.

    offer(request) -> [open chunk] -> [unsent] -> worker
    take(request)  <- texts <- [answers] <----------+

A worker is asked for the chunk that this process needs next, and gives others that are done with it. One that it has
not got to is left to this process, as is every chat that it leaves alone: errors arise here. Where this process has
caught up with a worker, it renders the next chunk itself, and the worker goes on behind it.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from types import TracebackType
from typing import Self

from kvtune.tokenization.encoding.prompt_encoder import PromptEncoder, Rendered
from kvtune.tokenization.encoding.render_task import (
    MOST_HELD,
    Answer,
    Ask,
    Chunk,
    RenderTask,
    chars_of,
    unpacked,
)
from kvtune.tokenization.request import Message, Request
from kvtune.tokenization.workers import Worker, hand_back

_CHUNK = 32
"""Chats that are sent at a time: turns of one conversation share their messages within it."""

_CHUNK_CHARS = 1 << 22
"""Characters after which a chunk is sent before it has so many."""

_MOST_SENT = 1 << 25
"""Bytes of requests that a worker may have before it."""

_MOST_GIVEN = 1 << 22
"""Characters that one answer may hold beside the chunk that was asked for."""


class RenderAhead:
    """Spreads chats over workers; without any, everything is left to this process.

    A context manager: leaving it hands the workers back.
    """

    def __init__(self, workers: Sequence[Worker], open_encoder: Callable[[], PromptEncoder]) -> None:
        """`open_encoder` is called in each worker; what it gives renders as the trace's own encoder does."""
        self._hands = [_Hand(worker, RenderTask(open_encoder)) for worker in workers]
        self._offered: dict[int, tuple[Request, int, int]] = {}  # holds the request, and so its id
        self._number = 0
        self._open: list[Request] = []
        self._open_chars = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hand in self._hands:
            if kind is None:
                hand.end()
            else:
                hand.lose()  # it may be in the middle of an answer

    def offer(self, request: Request) -> None:
        """This request will be asked for. Its arrival and its id may still change."""
        if request.messages is None or not self._hands:
            return
        chars = _text_chars(request.messages)
        if chars is None:
            return
        self._offered[id(request)] = (request, self._number, len(self._open))
        self._open.append(_what_a_template_sees(request))
        self._open_chars += chars
        if len(self._open) == _CHUNK or self._open_chars > _CHUNK_CHARS:
            self._close_chunk()

    def take(self, request: Request) -> Rendered | None:
        """What the template writes for it, None where that is yet to be found out."""
        offered = self._offered.pop(id(request), None)
        if offered is None:
            return None
        if self._open:
            self._close_chunk()
        _, number, nth = offered
        return self._hand(number).take(number, nth, following=(number + len(self._hands),))

    def _close_chunk(self) -> None:
        self._hand(self._number).offer(self._number, self._open)
        self._number += 1
        self._open = []
        self._open_chars = 0

    def _hand(self, number: int) -> _Hand:
        return self._hands[number % len(self._hands)]


class _Hand:
    """One worker, as seen from here."""

    def __init__(self, worker: Worker, task: RenderTask) -> None:
        self._worker: Worker | None = worker
        self._task = task
        self._has_begun = False
        self._unsent: OrderedDict[int, list[Request]] = OrderedDict()
        self._sent: dict[int, int] = {}  # number -> bytes
        self._bytes_sent = 0
        self._answers: dict[int, _AnsweredChunk] = {}
        self._chars_held = 0
        self._send()

    def offer(self, number: int, chats: list[Request]) -> None:
        """One more chunk."""
        self._unsent[number] = chats
        self._send()

    def take(self, number: int, nth: int, following: Sequence[int]) -> Rendered | None:
        """The `nth` chat of a chunk. `following`: chunks that will be wanted next."""
        if number not in self._answers:
            self._send()
            self._unsent.pop(number, None)  # done here, if it could not be sent
            if number in self._sent:
                self._ask(number, following)
        chunk = self._answers.get(number)
        if chunk is None:
            return None
        rendered = chunk.take(nth)
        if not chunk.untaken:
            del self._answers[number]
            self._chars_held -= chunk.chars
        return rendered

    def _send(self) -> None:
        """The task, and all that the worker may have; nothing while it starts, as writing would wait for that."""
        try:
            if self._worker is None or not self._worker.is_up():
                return
            if not self._has_begun:
                self._has_begun = True
                self._worker.begin(self._task)
            while self._unsent and self._bytes_sent < _MOST_SENT:
                chunk = self._unsent.popitem(last=False)
                try:
                    data = pickle.dumps(chunk)
                except RecursionError:
                    continue  # JSON nested too deeply to be handed on
                self._worker.pipe.send_bytes(data)
                self._sent[chunk[0]] = len(data)
                self._bytes_sent += len(data)
        except (OSError, EOFError):
            self.lose()

    def _ask(self, number: int, following: Sequence[int]) -> None:
        if self._worker is None:
            return
        try:
            room = min(_MOST_GIVEN, MOST_HELD - self._chars_held)
            self._worker.pipe.send(Ask(number, following, room))
            answer: Answer = self._worker.pipe.recv()
        except (OSError, EOFError):
            self.lose()
            return
        for other, chunk in answer.chunks:
            self._answers[other] = _AnsweredChunk(chunk)
            self._chars_held += self._answers[other].chars
            self._bytes_sent -= self._sent.pop(other)
        for other in answer.left:
            self._bytes_sent -= self._sent.pop(other)

    def lose(self) -> None:
        """Do without the worker."""
        if self._worker is not None:
            self._worker.end()
        self._worker = None
        self._sent = {}

    def end(self) -> None:
        """Nothing more will be asked."""
        if self._worker is None:
            return
        try:
            if self._has_begun:
                self._worker.pipe.send(None)
        except OSError:
            self.lose()
        else:
            hand_back(self._worker)


class _AnsweredChunk:
    """Chats that came back, unpacked as they are taken: one of them at a time is held at its full length."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self._unpacking = unpacked(chunk)
        self._place = 0
        self.chars = chars_of(chunk)
        self.untaken = len(chunk)

    def take(self, nth: int) -> Rendered | None:
        """The `nth` chat; each is taken once, in order if it is to be fast."""
        if nth < self._place:
            self._unpacking, self._place = unpacked(self._chunk), 0
        rendered = next(islice(self._unpacking, nth - self._place, None))
        self._place = nth + 1
        self.untaken -= 1
        return rendered


def _text_chars(messages: Sequence[Message]) -> int | None:
    """How long the messages are, about; None where one has other parts than text, which workers leave alone."""
    chars = 0
    for message in messages:
        content = message.get("content") if type(message) is dict else None
        if type(content) is str:
            chars += len(content)
        elif type(content) is list:
            for part in content:
                text = part.get("text") if type(part) is dict and part.get("type") == "text" else None
                if type(text) is not str:
                    return None
                chars += len(text)
    return chars


def _what_a_template_sees(request: Request) -> Request:
    return Request(
        id="",
        messages=request.messages,
        tools=request.tools,
        documents=request.documents,
        chat_template=request.chat_template,
        chat_template_kwargs=request.chat_template_kwargs,
        tool_choice=request.tool_choice,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
    )
