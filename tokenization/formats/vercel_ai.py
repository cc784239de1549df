"""Spans of the Vercel AI SDK: the provider's call (`doGenerate`, `doStream`) holds prompt and tools as JSON text."""

from __future__ import annotations

from typing import Any

import msgspec

from kvtune.tokenization.formats.drafts import Origin, chat_draft
from kvtune.tokenization.formats.format import Draft
from kvtune.tokenization.formats.messages import checked_messages
from kvtune.tokenization.formats.nested import as_json, refuse_cut_json
from kvtune.tokenization.formats.parts import Part, content_of, function_tool, image_part, message, tool_call
from kvtune.tokenization.formats.spans import Span
from kvtune.tokenization.rejects import RecordError, describe
from kvtune.tokenization.request import Message

_OPERATION = "ai.operationId"
_MESSAGES = "ai.prompt.messages"
_TOOLS = "ai.prompt.tools"


def is_vercel_ai(span: Span) -> bool:
    """Whether a span is of this SDK."""
    return _OPERATION in span.attributes or _MESSAGES in span.attributes


def read_span(span: Span, origin: Origin) -> list[Draft]:
    """The request of a provider's call; nothing for the spans around it."""
    attributes = span.attributes
    operation = str(attributes.get(_OPERATION, "doGenerate"))
    if not operation.endswith(("doGenerate", "doStream")):
        return []
    held = as_json(attributes.get(_MESSAGES))
    if not isinstance(held, list):
        refuse_cut_json(str(held), _MESSAGES)
        wanted = "messages (experimental_telemetry with recordInputs)"
        raise RecordError("no_request", _MESSAGES, found=describe(held), wanted=wanted)
    messages = [sent for one in held for sent in _messages(one)]
    return [chat_draft(origin, checked_messages(messages, _MESSAGES), _tools(attributes.get(_TOOLS)))]


def _messages(one: Any) -> list[Message]:
    held = one if isinstance(one, dict) else {}
    role = held.get("role")
    role = role if isinstance(role, str) else ""
    content = held.get("content")
    if not isinstance(content, list):
        return [message(role, content)]
    results: list[Message] = []
    calls: list[dict[str, Any]] = []
    parts: list[Part] = []
    thoughts: list[str] = []
    for part in content:
        inner = part if isinstance(part, dict) else {}
        kind = inner.get("type")
        if kind == "tool-call":
            arguments = inner.get("input", inner.get("args"))
            calls.append(tool_call(inner.get("toolCallId"), inner.get("toolName"), arguments or {}))
        elif kind == "tool-result":
            results.append(message("tool", _result(inner), tool_call_id=inner.get("toolCallId")))
        elif kind == "reasoning" and isinstance(inner.get("text"), str):
            thoughts.append(inner["text"])
        else:
            parts.append(_part(inner))
    if parts or calls or not results:
        results.append(message(role, content_of(parts), reasoning="\n".join(thoughts), tool_calls=calls))
    return results


def _part(part: dict[str, Any]) -> Part:
    url = part.get("image", part.get("data"))
    if part.get("type") in ("image", "file") and isinstance(url, str):
        return image_part(url)
    return {"type": "text", "text": part.get("text")}


def _result(part: dict[str, Any]) -> str:
    """What a tool gave, as the SDK sends it: text as it is, anything else as JSON."""
    output = part.get("output", part.get("result"))
    if isinstance(output, dict) and set(output) == {"type", "value"}:
        output = output["value"]
    return output if isinstance(output, str) else msgspec.json.encode(output).decode()


def _tools(held: Any) -> list[dict[str, Any]] | None:
    listed = as_json(held)
    tools = [as_json(one) for one in listed] if isinstance(listed, list) else []
    return [
        function_tool(one.get("name"), one.get("description"), one.get("inputSchema", one.get("parameters")))
        for one in tools
        if isinstance(one, dict) and one.get("type", "function") == "function"
    ] or None
