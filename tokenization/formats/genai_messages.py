"""Messages and tools in the attributes and events of OpenTelemetry's GenAI conventions, in the OpenAI shape."""

from __future__ import annotations

from typing import Any

import msgspec

from kvtune.tokenization.formats.nested import as_json
from kvtune.tokenization.formats.parts import (
    Part,
    content_of,
    data_url,
    function_tool,
    image_part,
    message,
    tool_call,
)
from kvtune.tokenization.formats.spans import Event, Span, indexed, lost_attributes, lost_oldest
from kvtune.tokenization.rejects import describe_name
from kvtune.tokenization.request import Message

_EVENT_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_MODALITIES = {"image": "image_url", "audio": "audio_url", "video": "video_url"}


def messages_from_attributes(
    span: Span, name: str = "gen_ai.input.messages", *, system: bool = True
) -> list[Message]:
    """Conventions 1.37 and later: `gen_ai.input.messages`, on the span or its details event, often a JSON string."""
    for attributes in (span.attributes, *(event.attributes for event in span.events)):
        held = as_json(attributes.get(name))
        if isinstance(held, list) and held:
            found: list[Message] = []
            rules = as_json(attributes.get("gen_ai.system_instructions")) if system else None
            if isinstance(rules, str):
                rules = [{"type": "text", "content": rules}]
            if isinstance(rules, list) and rules:
                found += _of_parts("system", rules)
            for one in held:
                found += _message(one)
            return found
    return []


def messages_from_events(span: Span) -> list[Message] | str:
    """Conventions up to 1.36: an event a message, or `gen_ai.content.prompt` with the prompt in it."""
    events = [*span.events, *_events_attribute(span.attributes.get("events"))]
    messages = [_event_message(event) for event in events if event.name in _EVENT_ROLES]
    if messages:
        return messages
    for event in span.events:
        prompt = as_json(event.attributes.get("gen_ai.prompt"))
        if isinstance(prompt, list) and all(isinstance(one, dict) for one in prompt):
            return prompt
        if isinstance(prompt, str) and prompt:
            return prompt
    return []


def _events_attribute(held: Any) -> list[Event]:
    """Events as one attribute, a list in JSON (Pydantic AI), the answer (`gen_ai.choice`) among them."""
    found = as_json(held)
    rows = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return [Event(str(one.get("event.name")), one) for one in rows]


def messages_from_numbers(span: Span) -> list[Message] | str:
    """Numbered attributes `gen_ai.prompt.N.role`, `.content`, `.tool_calls.M.name` (OpenLLMetry).

    Raises `RecordError` where a message lacks its role or its content: a limit or the instrumentation dropped it.
    """
    messages: list[Message] = []
    numbered = indexed(span.attributes, "gen_ai.prompt")
    for number, one in enumerate(numbered):
        if len(numbered) == 1 and "content" in one and "role" not in one and not lost_oldest(span):
            return str(one["content"])
        role = one.get("role")
        calls = [
            tool_call(call.get("id"), call.get("name"), call.get("arguments") or "{}")
            for call in indexed(one, "tool_calls")
        ]
        if not isinstance(role, str) or ("content" not in one and role in ("system", "user")):
            field = f"gen_ai.prompt.{number}.{'content' if isinstance(role, str) else 'role'}"
            raise lost_attributes(field, "a message without it")
        content = as_json(one.get("content"))
        parts = content if isinstance(content, list) and _all_parts(content) else one.get("content")
        messages.append(message(role, parts, tool_calls=calls, tool_call_id=one.get("tool_call_id")))
    return messages


def tools_from_attributes(attributes: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Tool definitions, new (`gen_ai.tool.definitions`) or numbered (`llm.request.functions.N.name`)."""
    held = as_json(attributes.get("gen_ai.tool.definitions"))
    if isinstance(held, list):
        tools = [_tool(one) for one in (as_json(one) for one in held) if isinstance(one, dict)]
        return tools or None
    parameters = as_json(attributes.get("model_request_parameters"))
    if isinstance(parameters, dict) and isinstance(parameters.get("function_tools"), list):
        return [
            function_tool(one.get("name"), one.get("description"), one.get("parameters_json_schema"))
            for one in parameters["function_tools"]
            if isinstance(one, dict)
        ] or None
    functions = indexed(attributes, "llm.request.functions")
    return [
        function_tool(one.get("name"), one.get("description"), as_json(one.get("parameters")))
        for one in functions
    ] or None


def _tool(one: dict[str, Any]) -> dict[str, Any]:
    if "function" in one:
        return one
    return function_tool(one.get("name"), one.get("description"), as_json(one.get("parameters")))


def _message(one: Any) -> list[Message]:
    held = one if isinstance(one, dict) else {}
    role = _role(held.get("role"))
    parts = held.get("parts")
    if isinstance(parts, list):
        return _of_parts(role, parts)
    return [held] if held else [message(role, None)]


def _role(role: Any) -> str:
    return role if isinstance(role, str) else describe_name(role)


def _of_parts(role: str, parts: list[Any]) -> list[Message]:
    """A message; each tool's response in it is a message of its own, before the rest."""
    results: list[Message] = []
    content: list[Part] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for part in parts:
        held = part if isinstance(part, dict) else {"type": "text", "content": part}
        kind = held.get("type")
        if kind == "tool_call":
            calls.append(tool_call(held.get("id"), held.get("name"), held.get("arguments") or {}))
        elif kind == "tool_call_response":
            text = held.get("response", held.get("result"))
            results.append(message("tool", _text(text), tool_call_id=held.get("id")))
        elif kind in ("reasoning", "thinking") and isinstance(held.get("content"), str):
            thoughts.append(held["content"])
        else:
            content.append(_part(held))
    if content or calls or thoughts or not results:
        results.append(message(role, content_of(content), reasoning="\n".join(thoughts), tool_calls=calls))
    return results


def _text(response: Any) -> Any:
    return response if isinstance(response, str) else msgspec.json.encode(response).decode()


def _part(part: Part) -> Part:
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": part.get("content", part.get("text"))}
    carrier = _MODALITIES.get(str(part.get("modality")))
    if kind == "blob" and carrier:
        url = data_url(part.get("mime_type"), part.get("content", part.get("data")))
        return image_part(url) if carrier == "image_url" else {"type": carrier, carrier: {"url": url}}
    if kind == "uri" and carrier and isinstance(part.get("uri"), str):
        return {"type": carrier, carrier: {"url": part["uri"]}}
    return part


def _event_message(event: Event) -> Message:
    attributes = event.attributes
    role = attributes.get("role")
    calls = as_json(attributes.get("tool_calls"))
    return message(
        role if isinstance(role, str) else _EVENT_ROLES[event.name],
        as_json(attributes.get("content"))
        if _is_parts(attributes.get("content"))
        else attributes.get("content"),
        tool_calls=calls if isinstance(calls, list) else None,
        tool_call_id=attributes.get("id") if event.name == "gen_ai.tool.message" else None,
    )


def _is_parts(content: Any) -> bool:
    held = as_json(content)
    return isinstance(held, list) and _all_parts(held)


def _all_parts(held: list[Any]) -> bool:
    return all(isinstance(one, dict) and "type" in one for one in held)
