"""OpenInference's LLM spans: messages and tools under numbered names, or the whole request as `input.value`."""

from __future__ import annotations

from typing import Any

from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import Origin, chat_draft
from kvtune.tokenization.formats.format import Draft
from kvtune.tokenization.formats.messages import checked_messages
from kvtune.tokenization.formats.nested import as_json
from kvtune.tokenization.formats.parts import Part, content_of, image_part, message, tool_call
from kvtune.tokenization.formats.spans import Span, indexed
from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.request import Message

_KIND = "openinference.span.kind"
_MESSAGES = "llm.input_messages"


def is_openinference(span: Span) -> bool:
    """Whether a span is of this convention: it names its kind, or has messages under this name."""
    return _KIND in span.attributes or any(name.startswith(_MESSAGES) for name in span.attributes)


def read_span(span: Span, origin: Origin) -> list[Draft]:
    """The request of an LLM span; nothing for spans of another kind."""
    attributes = span.attributes
    if attributes.get(_KIND, "LLM") != "LLM":
        return []
    answers = [_message(one) for one in _numbered(attributes, "llm.output_messages")]
    if answers:
        origin = origin.renamed(origin.id, output=answers[0])
    numbered = _numbered(attributes, _MESSAGES)
    if numbered:
        messages = [_message(one) for one in numbered]
        return [chat_draft(origin, checked_messages(messages, _MESSAGES), _tools(attributes))]
    held = as_json(attributes.get("input.value"))
    if isinstance(held, dict):
        return list(read_body(held, origin, "input.value"))
    if isinstance(held, list) and held:
        return list(read_body({"messages": held}, origin, "input.value"))
    if isinstance(held, str) and held:
        return list(read_body({"prompt": held}, origin, "input.value"))
    raise RecordError(
        "no_request", _MESSAGES, found="a span without content", wanted="input messages or input.value"
    )


def _numbered(attributes: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Messages under numbered names, or already a list (Phoenix's exports)."""
    held = as_json(attributes.get(name))
    if isinstance(held, list):
        return [one for one in held if isinstance(one, dict)]
    return indexed(attributes, name)


def _message(flat: dict[str, Any]) -> Message:
    held = {name.removeprefix("message."): value for name, value in flat.items()}
    if isinstance(flat.get("message"), dict):
        held = flat["message"]
    parts = [_part(one) for one in indexed(held, "contents")]
    calls = [
        tool_call(
            one.get("tool_call.id"),
            one.get("tool_call.function.name"),
            one.get("tool_call.function.arguments") or "{}",
        )
        for one in indexed(held, "tool_calls")
    ]
    role = held.get("role")
    content = content_of(parts) if parts else held.get("content")
    return message(
        role if isinstance(role, str) else "",
        content,
        tool_calls=calls,
        tool_call_id=held.get("tool_call_id"),
    )


def _part(flat: dict[str, Any]) -> Part:
    held = {name.removeprefix("message_content."): value for name, value in flat.items()}
    url = held.get("image.image.url")
    if isinstance(url, str):
        return image_part(url)
    return {"type": "text", "text": held.get("text")}


def _tools(attributes: dict[str, Any]) -> list[dict[str, Any]] | None:
    schemas = [as_json(one.get("tool.json_schema")) for one in indexed(attributes, "llm.tools")]
    return [one for one in schemas if isinstance(one, dict)] or None
