"""OpenAI's Responses API, where a request holds its whole history; one that leans on the server's is refused."""

from __future__ import annotations

import json
from typing import Any

from kvtune.tokenization.formats.format import Record
from kvtune.tokenization.formats.messages import checked_messages
from kvtune.tokenization.formats.parts import (
    Part,
    content_of,
    image_part,
    message,
    text_part,
    tool_call,
)
from kvtune.tokenization.formats.tools import CUSTOM_INPUT, openai_tools
from kvtune.tokenization.rejects import RecordError, describe, describe_name
from kvtune.tokenization.request import Message

_STATE = ("previous_response_id", "conversation")
_TEXTS = ("input_text", "output_text", "text")
_TOOL_OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
_RUN_BY_PROVIDER = (
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_list_tools",
    "compaction",
)


def chat_of_responses(body: Record, field: str) -> tuple[list[Message], list[dict[str, Any]] | None]:
    """Messages and tools of a body of `/v1/responses`."""
    prefix = f"{field}." if field else ""
    for name in _STATE:
        if body.get(name) is not None:
            raise RecordError(
                "stateful", prefix + name, found="history on the server", wanted="the whole input"
            )
    messages: list[Message] = []
    instructions = body.get("instructions")
    if isinstance(instructions, str) and instructions:
        messages.append(message("system", instructions))
    items = body.get("input")
    name = prefix + "input"
    if isinstance(items, str):
        if not items:
            raise RecordError("empty_prompt", name, found="an empty string", wanted="text")
        messages.append(message("user", items))
    elif isinstance(items, list):
        if not items:
            raise RecordError("empty_prompt", name, found="an empty list", wanted="at least one item")
        for number, item in enumerate(items):
            _append(messages, item, f"{name}[{number}]")
    else:
        raise RecordError("wrong_type", name, found=describe(items), wanted="text or a list of items")
    return checked_messages(messages, name), openai_tools(body.get("tools") or None, prefix + "tools") or None


def answer_of(response: Record) -> Message | None:
    """The assistant message that a response's output items make, None where there is none."""
    messages: list[Message] = []
    try:
        for item in response.get("output") or []:
            _append(messages, item, "output")
    except RecordError:
        return None
    return messages[0] if len(messages) == 1 else None


def _append(messages: list[Message], item: Any, field: str) -> None:
    """Adds an item: calls and thoughts belong to the assistant's message that they follow or open."""
    if not isinstance(item, dict):
        raise RecordError("wrong_type", field, found=describe(item), wanted="an input item")
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        content = _content(item.get("content"), f"{field}.content")
        if role == "assistant" and _is_open(messages):
            messages[-1]["content"] = content
        else:
            messages.append(message(role if isinstance(role, str) else describe_name(role), content))
    elif kind == "function_call":
        call = tool_call(item.get("call_id", item.get("id")), item.get("name"), item.get("arguments") or "{}")
        _turn(messages).setdefault("tool_calls", []).append(call)
    elif kind == "custom_tool_call":
        text = item.get("input")
        call = tool_call(
            item.get("call_id"),
            item.get("name"),
            json.dumps({CUSTOM_INPUT: text if isinstance(text, str) else ""}, ensure_ascii=False),
        )
        _turn(messages).setdefault("tool_calls", []).append(call)
    elif kind == "local_shell_call":
        call = tool_call(item.get("call_id", item.get("id")), "local_shell", item.get("action") or "{}")
        _turn(messages).setdefault("tool_calls", []).append(call)
    elif kind in _RUN_BY_PROVIDER:
        pass  # it holds no text for a template
    elif kind in _TOOL_OUTPUTS:
        output = item.get("output")
        text = output if isinstance(output, str) else _content(output, f"{field}.output")
        messages.append(message("tool", text, tool_call_id=item.get("call_id", item.get("id"))))
    elif kind == "reasoning":
        thought = _thought(item)
        if thought:
            if messages and messages[-1]["role"] == "assistant" and not messages[-1].get("reasoning"):
                messages[-1]["reasoning"] = thought
            else:
                messages.append(message("assistant", None, reasoning=thought))
    elif kind == "item_reference":
        raise RecordError(
            "stateful", field, found="a reference to an item on the server", wanted="the item itself"
        )
    else:
        raise RecordError(
            "wrong_type", f"{field}.type", found=describe_name(kind), wanted="an item that is text"
        )


def _is_open(messages: list[Message]) -> bool:
    """Whether the last message is an assistant's thought that still waits for its words."""
    return bool(messages) and messages[-1]["role"] == "assistant" and messages[-1]["content"] is None


def _turn(messages: list[Message]) -> Message:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append(message("assistant", None))
    return messages[-1]


def _thought(item: Record) -> str:
    for name in ("content", "summary"):
        held = item.get(name)
        if isinstance(held, list):
            texts = [
                one["text"] for one in held if isinstance(one, dict) and isinstance(one.get("text"), str)
            ]
            if texts:
                return "\n".join(texts)
    return ""


def _content(content: Any, field: str) -> str | list[Part] | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RecordError("wrong_type", field, found=describe(content), wanted="text or a list of parts")
    parts: list[Part] = []
    for number, part in enumerate(content):
        if not isinstance(part, dict):
            raise RecordError(
                "wrong_type", f"{field}[{number}]", found=describe(part), wanted="a content part"
            )
        kind = part.get("type")
        if kind in _TEXTS:
            parts.append(text_part(part.get("text"), f"{field}[{number}].text"))
        elif kind == "refusal":
            parts.append(text_part(part.get("refusal"), f"{field}[{number}].refusal"))
        elif kind == "input_image" and isinstance(part.get("image_url"), str):
            parts.append(image_part(part["image_url"]))
        else:
            parts.append(part)
    return content_of(parts)
