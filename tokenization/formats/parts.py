"""Content blocks of other APIs to OpenAI's content parts, and their tools and calls to OpenAI's."""

from __future__ import annotations

from typing import Any

import msgspec

from kvtune.tokenization.rejects import RecordError, describe
from kvtune.tokenization.request import Message

Part = dict[str, Any]


def text_part(text: Any, field: str) -> Part:
    """A text part; raises `RecordError` where the text is none."""
    if not isinstance(text, str):
        raise RecordError("wrong_type", field, found=describe(text), wanted="a string")
    return {"type": "text", "text": text}


def image_part(url: str) -> Part:
    """An image by link or data URL."""
    return {"type": "image_url", "image_url": {"url": url}}


def data_url(mime: Any, data: Any) -> str:
    """Inline base64 data as a data URL."""
    return f"data:{mime if isinstance(mime, str) else 'application/octet-stream'};base64,{data}"


def content_of(parts: list[Part]) -> str | list[Part] | None:
    """Parts as a message's content: one text is a plain string, as most clients would send it."""
    if not parts:
        return None
    if len(parts) == 1 and parts[0].get("type") == "text" and "text" in parts[0]:
        text: str = parts[0]["text"]
        return text
    return parts


def arguments_text(arguments: Any) -> str:
    """Arguments of a tool call as OpenAI writes them: JSON in a string."""
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def tool_call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A tool call in the OpenAI shape."""
    return {
        "id": call_id if isinstance(call_id, str) else "",
        "type": "function",
        "function": {"name": name if isinstance(name, str) else "", "arguments": arguments_text(arguments)},
    }


def function_tool(name: Any, description: Any, parameters: Any, **more: Any) -> dict[str, Any]:
    """A tool in the OpenAI shape; what the source left out stays out."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    if parameters is not None:
        function["parameters"] = parameters
    function |= {key: value for key, value in more.items() if value is not None}
    return {"type": "function", "function": function}


def message(role: str, content: Any, **more: Any) -> Message:
    """A message; None and empty extras stay out."""
    return {"role": role, "content": content} | {key: value for key, value in more.items() if value}
