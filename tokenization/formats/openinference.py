"""OpenInference's LLM spans: messages and tools under numbered names, or the whole request as `input.value`."""

from __future__ import annotations

from typing import Any

from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import Origin, chat_draft
from kvtune.tokenization.formats.format import Draft
from kvtune.tokenization.formats.messages import checked_messages
from kvtune.tokenization.formats.nested import as_json, refuse_cut_json
from kvtune.tokenization.formats.parts import Part, content_of, image_part, message, tool_call
from kvtune.tokenization.formats.spans import Span, indexed, lost_attributes, lost_oldest, require_all
from kvtune.tokenization.formats.tools import openai_tools
from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.request import Message

_KIND = "openinference.span.kind"
_MESSAGES = "llm.input_messages"
_TOOLS = "llm.tools"


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
    held = as_json(attributes.get("input.value"))
    if isinstance(held, dict) and _is_body(held, len(numbered)):
        return list(read_body(held, origin, "input.value"))
    require_all(span, _MESSAGES, _TOOLS)
    if numbered:
        messages = [_message(one) for one in numbered]
        tools = _tools(attributes)
        if not messages[0]["role"] or (tools is None and lost_oldest(span)):
            raise lost_attributes(_MESSAGES if tools else _TOOLS, "attributes that a limit dropped")
        return [chat_draft(origin, checked_messages(messages, _MESSAGES), tools)]
    if isinstance(held, dict):
        return list(read_body(held, origin, "input.value"))
    if isinstance(held, list) and held:
        return list(read_body({"messages": held}, origin, "input.value"))
    if isinstance(held, str) and held:
        refuse_cut_json(held, "input.value")
        return list(read_body({"prompt": held}, origin, "input.value"))
    raise RecordError(
        "no_request", _MESSAGES, found="a span without content", wanted="input messages or input.value"
    )


def _is_body(held: dict[str, Any], messages: int) -> bool:
    """Whether `input.value` is the body as it was sent, which says more than the numbered attributes."""
    sent = held.get("messages")
    if not isinstance(sent, list) or not sent or "model" not in held or len(sent) < messages:
        return False
    return all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in sent)


def _numbered(attributes: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Messages under numbered names, or already a list (Phoenix's exports)."""
    held = as_json(attributes.get(name))
    if isinstance(held, list):
        return [one for one in held if isinstance(one, dict)]
    return indexed(attributes, name)


def _message(flat: dict[str, Any]) -> Message:
    held = _without_prefix(flat, "message")
    parts = [_part(one) for one in _numbered(held, "contents")]
    calls = [_call(one) for one in _numbered(held, "tool_calls")]
    role = held.get("role")
    content = content_of(parts) if parts else held.get("content")
    return message(
        role if isinstance(role, str) else "",
        content,
        tool_calls=calls,
        tool_call_id=held.get("tool_call_id"),
    )


def _call(flat: dict[str, Any]) -> dict[str, Any]:
    held = _without_prefix(flat, "tool_call")
    inner = held.get("function")
    function = inner if isinstance(inner, dict) else _without_prefix(held, "function")
    return tool_call(held.get("id"), function.get("name"), function.get("arguments") or "{}")


def _without_prefix(flat: dict[str, Any], prefix: str) -> dict[str, Any]:
    """What stands under a prefix, be it flat names or an object of that name."""
    nested = flat.get(prefix)
    if isinstance(nested, dict):
        return nested
    start = prefix + "."
    return {name.removeprefix(start): value for name, value in flat.items()}


def _part(flat: dict[str, Any]) -> Part:
    held = _without_prefix(flat, "message_content")
    url = held.get("image.image.url")
    if isinstance(url, str):
        return image_part(url)
    return {"type": "text", "text": held.get("text")}


def _tools(attributes: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Tools, numbered or a list, in OpenAI's dialect or another's."""
    schemas = (
        as_json(_without_prefix(one, "tool").get("json_schema")) for one in _numbered(attributes, _TOOLS)
    )
    return openai_tools([one for one in schemas if isinstance(one, dict)], _TOOLS)
