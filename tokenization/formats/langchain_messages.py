"""LangChain's messages, plain (`type`, `content`) or serialized (`lc`, `kwargs`), in the OpenAI shape."""

from __future__ import annotations

from typing import Any

from kvtune.tokenization.formats.parts import arguments_text, message, tool_call
from kvtune.tokenization.request import Message

_ROLES = {
    "human": "user",
    "HumanMessage": "user",
    "HumanMessageChunk": "user",
    "ai": "assistant",
    "AIMessage": "assistant",
    "AIMessageChunk": "assistant",
    "system": "system",
    "SystemMessage": "system",
    "tool": "tool",
    "ToolMessage": "tool",
    "function": "function",
    "FunctionMessage": "function",
}


def is_langchain(messages: Any) -> bool:
    """Whether a list holds LangChain's messages and not OpenAI's."""
    if not isinstance(messages, list) or not messages:
        return False
    first = messages[0]
    if isinstance(first, list):
        return is_langchain(first)
    return isinstance(first, dict) and "role" not in first and _kind(first) in {*_ROLES, "chat"}


def openai_messages(messages: Any) -> list[Any]:
    """The messages in the OpenAI shape; one that is none stays as it is, for the reader to refuse."""
    held = messages[0] if messages and isinstance(messages[0], list) else messages
    return [_converted(one) if isinstance(one, dict) and "role" not in one else one for one in held]


def split_tools(messages: list[Any]) -> tuple[list[Any], list[dict[str, Any]]]:
    """Messages and tools of Langfuse's LangChain handler, which writes tools as messages at the end."""
    tools = [one["content"] for one in messages if _is_tool(one)]
    rest = [
        one | {"tool_calls": _calls(one, {})} if _has_own_calls(one) else one
        for one in messages
        if not _is_tool(one)
    ]
    return rest, tools


def _is_tool(one: Any) -> bool:
    content = one.get("content") if isinstance(one, dict) else None
    return isinstance(content, dict) and one.get("role") == "tool" and "function" in content


def _has_own_calls(one: Any) -> bool:
    calls = one.get("tool_calls") if isinstance(one, dict) else None
    return isinstance(calls, list) and any(isinstance(call, dict) and "args" in call for call in calls)


def _kind(one: dict[str, Any]) -> str:
    names = one.get("id")
    if one.get("type") == "constructor" and isinstance(names, list) and names:
        return str(names[-1])
    return str(one.get("type"))


def _converted(one: dict[str, Any]) -> Message:
    fields = one.get("kwargs") if one.get("type") == "constructor" else one.get("data", one)
    fields = fields if isinstance(fields, dict) else {}
    more = fields.get("additional_kwargs")
    more = more if isinstance(more, dict) else {}
    role = _ROLES.get(_kind(one), fields.get("role"))
    return message(
        role if isinstance(role, str) else "",
        fields.get("content"),
        tool_calls=_calls(fields, more),
        tool_call_id=fields.get("tool_call_id"),
        name=fields.get("name") if role == "function" else None,
        reasoning=more.get("reasoning_content"),
    )


def _calls(fields: dict[str, Any], more: dict[str, Any]) -> list[dict[str, Any]]:
    sent = more.get("tool_calls")
    if isinstance(sent, list) and sent:
        return [one for one in sent if isinstance(one, dict)]
    calls = fields.get("tool_calls")
    return [
        tool_call(one.get("id"), one.get("name"), arguments_text(one.get("args") or {}))
        for one in (calls if isinstance(calls, list) else [])
        if isinstance(one, dict)
    ]
