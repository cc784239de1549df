"""Anthropic's Messages API, in the OpenAI shape that a chat template takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvtune.tokenization.formats.format import Record
from kvtune.tokenization.formats.messages import checked_messages
from kvtune.tokenization.formats.parts import (
    Part,
    content_of,
    data_url,
    image_part,
    message,
    text_part,
    tool_call,
)
from kvtune.tokenization.formats.tools import openai_tools
from kvtune.tokenization.rejects import RecordError, describe, describe_name
from kvtune.tokenization.request import Message

_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use"})


def is_anthropic(body: Record) -> bool:
    """Whether a body with messages is one of `/v1/messages` and not of chat completions."""
    if "system" in body or "anthropic_version" in body:
        return True
    tools = body.get("tools")
    if isinstance(tools, list) and tools and isinstance(tools[0], dict) and "input_schema" in tools[0]:
        return True
    messages = body.get("messages")
    if not isinstance(messages, list) or any(_is_openai(one) for one in messages):
        return False
    return any(_has_own_block(one) for one in messages)


def _is_openai(one: Any) -> bool:
    """Whether a message is one that only chat completions have."""
    return isinstance(one, dict) and (one.get("role") in ("tool", "function") or "tool_calls" in one)


def _has_own_block(one: Any) -> bool:
    content = one.get("content") if isinstance(one, dict) else None
    if not isinstance(content, list):
        return False
    return any(
        isinstance(block, dict)
        and (str(block.get("type")) in _BLOCKS or (block.get("type") == "image" and "source" in block))
        for block in content
    )


def chat_of_anthropic(body: Record, field: str) -> tuple[list[Message], list[dict[str, Any]] | None]:
    """Messages and tools of a body of `/v1/messages`."""
    name = f"{field}.messages" if field else "messages"
    if body.get("messages") is None or not isinstance(body["messages"], list) or not body["messages"]:
        checked_messages(body.get("messages"), name)
    messages: list[Message] = []
    system = body.get("system")
    if system:
        messages.append(message("system", content_of(_parts(system, "system"))))
    for number, one in enumerate(body["messages"]):
        messages += _converted(one, f"{name}[{number}]")
    return checked_messages(messages, name), openai_tools(
        _with_schema(body.get("tools")), f"{field}.tools" if field else "tools"
    ) or None


def _converted(one: Any, field: str) -> Iterable[Message]:
    if not isinstance(one, dict):
        raise RecordError("wrong_type", field, found=describe(one), wanted="a message object")
    role = one.get("role")
    if role == "assistant":
        return [_assistant(one.get("content"), field)]
    if role == "user":
        return _user(one.get("content"), field)
    if role in ("system", "developer"):
        return [message("system", content_of(_parts(one.get("content"), field)))]
    raise RecordError("unknown_role", f"{field}.role", found=describe_name(role), wanted="user or assistant")


def _user(content: Any, field: str) -> list[Message]:
    """A user's message; each tool result in it is a message of its own, before the rest."""
    if isinstance(content, str):
        return [message("user", content)]
    results: list[Message] = []
    rest: list[Any] = []
    for block in _blocks(content, field):
        if block.get("type") == "tool_result":
            inner = block.get("content")
            text = content_of(_parts(inner, field)) if inner is not None else ""
            results.append(message("tool", text, tool_call_id=block.get("tool_use_id")))
        else:
            rest.append(block)
    if rest or not results:
        results.append(message("user", content_of(_parts(rest, field))))
    return results


def _assistant(content: Any, field: str) -> Message:
    if isinstance(content, str):
        return message("assistant", content)
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    rest: list[Any] = []
    for block in _blocks(content, field):
        kind = block.get("type")
        if kind in ("tool_use", "server_tool_use"):
            calls.append(tool_call(block.get("id"), block.get("name"), block.get("input") or {}))
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        elif kind != "redacted_thinking":
            rest.append(block)
    return message(
        "assistant", content_of(_parts(rest, field)), reasoning="\n".join(thoughts), tool_calls=calls
    )


def assistant_message(content: Any) -> Message | None:
    """The answer of a response's `content`, None where it is none."""
    try:
        return _assistant(content, "content") if content else None
    except RecordError:
        return None


def _blocks(content: Any, field: str) -> list[dict[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise RecordError(
            "wrong_type", f"{field}.content", found=describe(content), wanted="a string or blocks"
        )
    return content


def _parts(content: Any, field: str) -> list[Part]:
    """Text, image and document blocks as parts."""
    if isinstance(content, str):
        return [text_part(content, field)]
    parts: list[Part] = []
    for block in _blocks(content, field):
        kind = block.get("type")
        if kind == "text":
            parts.append(text_part(block.get("text"), f"{field}.content.text"))
        elif kind == "image":
            parts.append(_image(block.get("source")))
        else:
            parts.append({key: value for key, value in block.items() if key != "cache_control"})
    return parts


def _image(source: Any) -> Part:
    held = source if isinstance(source, dict) else {}
    if held.get("type") == "base64":
        return image_part(data_url(held.get("media_type"), held.get("data")))
    if isinstance(held.get("url"), str):
        return image_part(held["url"])
    return {"type": "image", "source": held}


def _with_schema(tools: Any) -> Any:
    """Tools that a template can show: Anthropic's own have a schema; those that the provider runs itself have none."""
    if not tools or not isinstance(tools, list):
        return tools or None
    return [one for one in tools if not isinstance(one, dict) or "input_schema" in one or "function" in one]
