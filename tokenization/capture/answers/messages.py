"""Answers of Anthropic's `/v1/messages`, which vLLM serves too, whole or streamed, in content blocks."""

from __future__ import annotations

from typing import Any

import msgspec

from kvtune.tokenization.capture.answers.answer import Answer
from kvtune.tokenization.capture.answers.events import events

_TEXT_OF = {"text": "text", "thinking": "thinking"}


class _Message(msgspec.Struct):
    content: list[dict[str, Any]] = []
    usage: dict[str, Any] | None = None


class _Delta(msgspec.Struct):
    text: str = ""
    thinking: str = ""
    partial_json: str = ""


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: dict[str, Any] | None = None
    delta: _Delta | None = None
    usage: dict[str, Any] | None = None


_message = msgspec.json.Decoder(_Message)
_event = msgspec.json.Decoder(_Event)


def read_message(body: bytes) -> Answer:
    """A whole answer, its blocks as they are."""
    message = _message.decode(body)
    return _answer(message.content, message.usage)


def join_blocks(stream: bytes) -> Answer:
    """A streamed answer; of a stream that was cut what had been said, less a tool call cut in its input."""
    blocks: dict[int, dict[str, Any]] = {}
    pieces: dict[int, list[_Delta]] = {}
    usage: dict[str, Any] = {}
    for data in events(stream):
        event = _event.decode(data)
        if event.message is not None:
            usage |= event.message.usage or {}
        usage |= event.usage or {}
        if event.content_block is not None:
            blocks[event.index] = event.content_block
        if event.type == "content_block_delta" and event.delta is not None:
            pieces.setdefault(event.index, []).append(event.delta)
    finished = [_finished(blocks[index], pieces.get(index, [])) for index in sorted(blocks)]
    return _answer([block for block in finished if block is not None], usage or None)


def _finished(block: dict[str, Any], pieces: list[_Delta]) -> dict[str, Any] | None:
    kind = block.get("type")
    if kind == "tool_use":
        text = "".join(piece.partial_json for piece in pieces)
        try:
            return block | {"input": msgspec.json.decode(text)} if text else block
        except msgspec.DecodeError:
            return None
    if kind in _TEXT_OF:
        name = _TEXT_OF[kind]
        return block | {name: "".join([block.get(name) or "", *(getattr(piece, name) for piece in pieces)])}
    return block


def _answer(blocks: list[dict[str, Any]], usage: dict[str, Any] | None) -> Answer:
    if not blocks:
        return Answer(None, usage)
    return Answer({"type": "message", "role": "assistant", "content": blocks}, usage)
