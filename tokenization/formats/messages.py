"""Chat messages in the OpenAI shape: checked, not changed."""

from __future__ import annotations

from typing import Any

from kvtune.tokenization.media import TEXT_PARTS
from kvtune.tokenization.rejects import RecordError, describe, describe_name
from kvtune.tokenization.request import Message

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_ROLES_WANTED = "system, developer, user, assistant, tool or function"


def checked_messages(value: Any, field: str) -> list[Message]:
    """The message list itself where every message can be rendered; raises `RecordError` naming the first at fault."""
    if value is None:
        raise RecordError("null_messages", field, found="null", wanted="a list of messages")
    if not isinstance(value, list):
        raise RecordError("wrong_type", field, found=describe(value), wanted="a list of messages")
    if not value:
        raise RecordError("empty_prompt", field, found="an empty list", wanted="at least one message")
    for number, message in enumerate(value):
        if not isinstance(message, dict):
            raise RecordError(
                "wrong_type", f"{field}[{number}]", found=describe(message), wanted="a message object"
            )
        role = message.get("role")
        if role not in ROLES if isinstance(role, str) else True:
            where = f"{field}[{number}].role"
            raise RecordError("unknown_role", where, found=describe_name(role), wanted=_ROLES_WANTED)
        content = message.get("content")
        if content is not None and not isinstance(content, str):
            _check_parts(content, f"{field}[{number}].content")
        calls = message.get("tool_calls")
        if calls is not None:
            _check_objects(calls, f"{field}[{number}].tool_calls", "tool calls")
    return value


def checked_objects(value: Any, field: str, what: str) -> list[Message] | None:
    """A list of objects or null, as `tools` and `documents` are."""
    if value is None:
        return None
    _check_objects(value, field, what)
    result: list[Message] = value
    return result


def _check_parts(content: Any, field: str) -> None:
    if not isinstance(content, list):
        raise RecordError(
            "wrong_type", field, found=describe(content), wanted="a string, a list of parts or null"
        )
    for number, part in enumerate(content):
        if isinstance(part, str):
            continue
        if not isinstance(part, dict):
            raise RecordError(
                "wrong_type", f"{field}[{number}]", found=describe(part), wanted="a content part"
            )
        kind = part.get("type")
        if kind is not None and not isinstance(kind, str):
            raise RecordError(
                "wrong_type", f"{field}[{number}].type", found=describe(kind), wanted="a string"
            )
        if kind in TEXT_PARTS:
            text = part.get("text", part.get(kind))
            if not isinstance(text, str):
                raise RecordError(
                    "wrong_type", f"{field}[{number}].text", found=describe(text), wanted="a string"
                )


def _check_objects(value: Any, field: str, what: str) -> None:
    if not isinstance(value, list):
        raise RecordError("wrong_type", field, found=describe(value), wanted=f"a list of {what}")
    for number, item in enumerate(value):
        if not isinstance(item, dict):
            raise RecordError("wrong_type", f"{field}[{number}]", found=describe(item), wanted="an object")
