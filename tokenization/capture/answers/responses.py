"""Answers of `/responses`, whole or streamed, as one assistant message."""

from __future__ import annotations

from typing import Any

import msgspec

from kvtune.tokenization.capture.answers.answer import Answer
from kvtune.tokenization.capture.answers.events import events


class _Part(msgspec.Struct):
    type: str = ""
    text: str = ""


class _Item(msgspec.Struct):
    type: str = ""
    content: list[_Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None


class _Response(msgspec.Struct):
    """A whole answer of `/responses`."""

    output: list[_Item] = []
    usage: dict[str, Any] | None = None


class _ResponseEvent(msgspec.Struct):
    """One event of a streamed `/responses`; only the last one repeats the whole answer."""

    type: str = ""
    response: _Response | None = None


_response = msgspec.json.Decoder(_Response)
_response_event = msgspec.json.Decoder(_ResponseEvent)


def read_response(body: bytes) -> Answer:
    """A whole answer: the texts of its messages and its function calls."""
    return _answer(_response.decode(body))


def last_response(stream: bytes) -> Answer:
    """A streamed answer, which its last event repeats whole; nothing where the stream was cut before."""
    last = None
    for event in events(stream):
        told = _response_event.decode(event)
        if told.type in ("response.completed", "response.incomplete"):
            last = told.response
    return Answer() if last is None else _answer(last)


def _answer(response: _Response) -> Answer:
    parts = [part for item in response.output if item.type == "message" for part in item.content or ()]
    calls = [
        {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
        for item in response.output
        if item.type == "function_call"
    ]
    text = "".join(part.text for part in parts if part.type == "output_text")
    if not text and not calls:
        return Answer(None, response.usage)
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = calls
    return Answer(message, response.usage)
