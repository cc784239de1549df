"""Chats rendered by workers, from the moment that they are read; `render_task` is what a worker does.

    offer(request) -> [unsent] --chunks--> worker
    take(request)  <- [answers] <----------+

A worker is asked for the chat that this process needs next, and gives others that are done with it. One that it has
not got to is left to this process, as is every one that it leaves alone: errors arise here.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Self

from kvtune.tokenization.encoding.prompt_encoder import PromptEncoder, Rendered
from kvtune.tokenization.encoding.render_task import CHUNK, MOST_HELD, Held, RenderTask, unpacked
from kvtune.tokenization.request import Request
from kvtune.tokenization.workers import Worker, hand_back

_MOST_SENT = 1 << 25
"""Bytes of requests that a worker may have before it."""

_MOST_GIVEN = 1 << 22
"""Characters that one answer may hold beside the chat that was asked for."""


class RenderAhead:
    """Spreads chats over workers; without any, everything is left to this process.

    A context manager: leaving it hands the workers back.
    """

    def __init__(self, workers: Sequence[Worker], open_encoder: Callable[[], PromptEncoder]) -> None:
        """`open_encoder` is called in each worker; what it gives renders as the trace's own encoder does."""
        self._hands = [_Hand(worker, RenderTask(open_encoder)) for worker in workers]
        for hand in self._hands:
            hand.send()
        self._offered: dict[int, tuple[Request, int]] = {}  # holds the request, and so its id
        self._count = 0

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
        self._offered[id(request)] = (request, self._count)
        self._hand(self._count).offer(self._count, request)
        self._count += 1

    def take(self, request: Request) -> Rendered | None:
        """What the template writes for it, None where that is yet to be found out."""
        _, number = self._offered.pop(id(request), (None, None))
        return self._hand(number).take(number) if number is not None else None

    def _hand(self, number: int) -> _Hand:
        return self._hands[number // CHUNK % len(self._hands)]


@dataclass
class _Hand:
    """One worker, as seen from here."""

    worker: Worker | None
    task: RenderTask
    has_begun: bool = False
    unsent: dict[int, Request] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)  # number -> its share of the bytes
    bytes_sent: int = 0
    answers: Held = field(default_factory=Held)

    def offer(self, number: int, request: Request) -> None:
        self.unsent[number] = _what_a_template_sees(request)
        if len(self.unsent) >= CHUNK:
            self.send()

    def take(self, number: int) -> Rendered | None:
        if number not in self.answers:
            self.send()
            self.unsent.pop(number, None)
            if number in self.sent:
                self._ask(number)
        return self.answers.pop(number)

    def send(self) -> None:
        """The task, and all that the worker may have; nothing while it starts, as writing would wait for that."""
        try:
            if self.worker is None or not self.worker.is_up():
                return
            if not self.has_begun:
                self.has_begun = True
                self.worker.begin(self.task)
            while self.unsent and self.bytes_sent < _MOST_SENT:
                chunk = list(islice(self.unsent.items(), CHUNK))
                for number, _ in chunk:
                    del self.unsent[number]
                try:
                    data = pickle.dumps(chunk)
                except RecursionError:
                    continue  # JSON nested too deeply to be handed on
                self.worker.pipe.send_bytes(data)
                self.sent.update((number, len(data) // len(chunk)) for number, _ in chunk)
                self.bytes_sent += len(data) // len(chunk) * len(chunk)
        except (OSError, EOFError):
            self.lose()

    def _ask(self, number: int) -> None:
        if self.worker is None:
            return
        try:
            self.worker.pipe.send((number, min(_MOST_GIVEN, MOST_HELD - self.answers.chars)))
            for other, rendered in unpacked(self.worker.pipe.recv()):
                self.answers.put(other, rendered)
                self._forget_sent(other)
            self._forget_sent(number)
        except (OSError, EOFError):
            self.lose()

    def _forget_sent(self, number: int) -> None:
        self.bytes_sent -= self.sent.pop(number, 0)

    def lose(self) -> None:
        """Do without the worker."""
        if self.worker is not None:
            self.worker.end()
        self.worker = None

    def end(self) -> None:
        """Nothing more will be asked."""
        if self.worker is None:
            return
        try:
            if self.has_begun:
                self.worker.pipe.send(None)
        except OSError:
            self.lose()
        else:
            hand_back(self.worker)


def _what_a_template_sees(request: Request) -> Request:
    return Request(
        id="",
        messages=request.messages,
        tools=request.tools,
        documents=request.documents,
        chat_template=request.chat_template,
        chat_template_kwargs=request.chat_template_kwargs,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
    )
