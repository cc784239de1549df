"""Answers of `/chat/completions` and `/completions`, whole or streamed.

`reasoning_content` is vLLM's, since 0.11 also written `reasoning`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvtune.tokenization.capture.answers.answer import Answer
from kvtune.tokenization.capture.answers.events import events

_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int = 0
    id: str | None = None
    type: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    message: dict[str, Any] | None = None
    delta: _Delta | None = None


class _Completion(msgspec.Struct):
    """A whole answer of `/chat/completions` or `/completions`, or one chunk of it."""

    choices: list[_Choice] = []
    usage: dict[str, Any] | None = None


_completion = msgspec.json.Decoder(_Completion)


def read_completion(body: bytes) -> Answer:
    """The first choice of a whole answer of `/chat/completions` or `/completions`."""
    completion = _completion.decode(body)
    first = next((choice for choice in completion.choices if choice.index == 0), None)
    if first is None:
        return Answer(None, completion.usage)
    if first.message is None:
        return Answer(None if first.text is None else {"text": first.text}, completion.usage)
    said = {key: value for key, value in first.message.items() if key == "content" or value not in (None, [])}
    return Answer(said, completion.usage)


def join_chunks(stream: bytes) -> Answer:
    """The first choice of a streamed answer; a stream that was cut gives what had been said by then."""
    ended = b"[DONE]" in stream[-64:]
    role = "assistant"
    texts: dict[str, list[str]] = {}
    calls: dict[int, dict[str, Any]] = {}
    completion: list[str] = []
    usage: dict[str, Any] | None = None
    spoke_chat = False
    for event in events(stream):
        chunk = _completion.decode(event)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if choice.index != 0:
                continue
            if choice.text is not None:
                completion.append(choice.text)
            if choice.delta is not None:
                spoke_chat = True
                role = choice.delta.role or role
                _add_delta(choice.delta, texts, calls)
    if completion and not spoke_chat:
        return Answer({"text": "".join(completion)}, usage)
    if not texts and not calls and not (spoke_chat and ended):
        return Answer(None, usage)
    message: dict[str, Any] = {"role": role, "content": "".join(texts.get("content", [])) or None}
    if not calls and message["content"] is None:
        message["content"] = ""
    for name in _TEXTS[1:]:
        if name in texts:
            message[name] = "".join(texts[name])
    if calls:
        message["tool_calls"] = [_finished(calls[index]) for index in sorted(calls)]
    return Answer(message, usage)


def _add_delta(delta: _Delta, texts: dict[str, list[str]], calls: dict[int, dict[str, Any]]) -> None:
    for name in _TEXTS:
        piece = getattr(delta, name)
        if piece:
            texts.setdefault(name, []).append(piece)
    for call in delta.tool_calls or ():
        known = calls.setdefault(call.index, {"id": None, "type": "function", "name": "", "arguments": []})
        known["id"] = known["id"] or call.id
        known["type"] = call.type or known["type"]
        if call.function is not None:
            known["name"] = known["name"] or call.function.name or ""
            known["arguments"].append(call.function.arguments or "")


def _finished(call: dict[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": "".join(call["arguments"])}
    return {"id": call["id"], "type": call["type"], "function": function}
