"""Puts an answer together: one assistant message (or completion text) and its usage, streamed or not.

Field names as the OpenAI API reference and vLLM's server write them (`reasoning_content`, since 0.11 also
`reasoning`). Knows no HTTP; the bytes are a server's and may be anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class Answer(msgspec.Struct):
    """`message` as the samples' `response` field holds it, None where nothing was said; `usage` as it came."""

    message: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None


class NotUnderstoodError(ValueError):
    """The answer is not what its endpoint should give."""


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


_completion = msgspec.json.Decoder(_Completion)
_response = msgspec.json.Decoder(_Response)
_response_event = msgspec.json.Decoder(_ResponseEvent)


def read_answer(path: str, body: bytes, *, streamed: bool) -> Answer:
    """The first choice of an answer; a stream that was cut gives what had been said by then.

    Args:
        path: the endpoint's path, which decides the shape.
        body: the answer's bytes, uncompressed.
        streamed: `body` is a server-sent event stream.

    Raises:
        NotUnderstoodError: anything but the endpoint's own shape.
    """
    try:
        if path.endswith("/responses"):
            return _read_response(_last_response(body) if streamed else _response.decode(body))
        if streamed:
            return _join_chunks(body, whole_stream=b"[DONE]" in body[-64:])
        return _read_completion(_completion.decode(body))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NotUnderstoodError(type(error).__name__) from error


def events(stream: bytes) -> Iterator[bytes]:
    """The data of each event of a server-sent event stream, `[DONE]` left out.

    Lines, comments and multi-line data as in the WHATWG standard; a last event without its blank line is
    unfinished and therefore no event.
    """
    data: list[bytes] = []
    for line in stream.splitlines():
        if not line:
            if data and data != [b"[DONE]"]:
                yield b"\n".join(data)
            data = []
        elif line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))


def _read_completion(completion: _Completion) -> Answer:
    first = next((choice for choice in completion.choices if choice.index == 0), None)
    if first is None:
        return Answer(None, completion.usage)
    if first.message is None:
        return Answer(None if first.text is None else {"text": first.text}, completion.usage)
    said = {key: value for key, value in first.message.items() if key == "content" or value not in (None, [])}
    return Answer(said, completion.usage)


def _join_chunks(stream: bytes, *, whole_stream: bool) -> Answer:
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
    if not texts and not calls and not (spoke_chat and whole_stream):
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


def _last_response(stream: bytes) -> _Response | None:
    last = None
    for event in events(stream):
        told = _response_event.decode(event)
        if told.type in ("response.completed", "response.incomplete"):
            last = told.response
    return last


def _read_response(response: _Response | None) -> Answer:
    if response is None:
        return Answer()
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
