"""Chat messages as the engine hands them to a template (vLLM 0.24 to 0.33; what changed is in `chat_rules`).

The request's own messages are never changed. Knows `ChatRules` and the two content formats; no Jinja.
Content of one message, by format:

    logged                      "string"                        "openai"
    "text"                      "text"                          [{type: text, text: "text"}]
    [text a, text b]            "a\\nb"                          [{type: text, text: a}, {type: text, text: b}]
    [image, text a]             "<placeholder>\\na"              [{type: image}, {type: text, text: a}]
    null                        ""                              []
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kvtune.tokenization.chat_rules import BILLING_HEADER, ChatRules
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.request import Message

ContentFormat = Literal["string", "openai"]

_TEXT_FIELD = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MODALITY = {
    "image_url": "image",
    "input_image": "image",
    "image_pil": "image",
    "image_embeds": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio_embeds": "audio",
    "video_url": "video",
    "video_embeds": "video",
}
_KNOWN_FIELDS = frozenset(
    {*_TEXT_FIELD, *_TEXT_FIELD.values(), *_MODALITY}
    | {"type", "uuid", "detail", "file", "file_id", "closed", "data", "name", "prompt_embeds"}
)
_MAX_ARGUMENTS_CHARS = 1 << 24
_MOST_MESSAGES = 1 << 14


@dataclass(frozen=True)
class Media:
    """One image, audio or video of a prompt. `part` is the content part as logged; `message` its index in the
    conversation; `in_text` whether the message's text holds a placeholder that was put there for it.
    """

    modality: str
    part: Mapping[str, Any]
    message: int
    in_text: bool


@dataclass
class Conversation:
    """What a template is given, and what it cannot be told by text."""

    messages: list[Message]
    media: list[Media] = field(default_factory=list)


class MessageReader:
    """Applies the rules of one release to conversations.

    Tool-call arguments are parsed once per distinct text and the parsed object is shared, so that its JSON can
    be remembered too; and a message that requests share, as the turns of a conversation do once they are decoded,
    is read once. Nothing downstream changes either (the sandbox refuses).
    """

    def __init__(
        self,
        rules: ChatRules,
        placeholders: Mapping[str, str] | None = None,
        keep: Callable[[Any], None] = lambda _value: None,
    ) -> None:
        """Rules of a release.

        Args:
            placeholders: the text that stands for an item of a modality where the format is "string".
            keep: told of every parsed arguments object that a conversation holds.
        """
        self._rules = rules
        self._keep = keep
        self._placeholders = dict(placeholders or {})
        self._arguments: dict[str, dict[str, Any]] = {}
        self._chars = 0
        self._known: dict[tuple[int, ContentFormat], tuple[Message, Message]] = {}  # logged, as read

    def read(self, messages: Sequence[Message], content_format: ContentFormat) -> Conversation:
        """The conversation of one request.

        Raises:
            UnusableInputError: a message that the engine refuses (no role, an unknown content part, tool calls
                that are no functions).
        """
        conversation = Conversation([])
        for index, message in enumerate(messages):
            known = self._known.get((id(message), content_format))
            if known is not None:
                conversation.messages.append(known[1])
                continue
            items = len(conversation.media)
            read = self._message(message, index, content_format, conversation.media)
            conversation.messages.append(read)
            if len(conversation.media) == items:
                if len(self._known) >= _MOST_MESSAGES:
                    self._known.clear()
                self._known[id(message), content_format] = (
                    message,
                    read,
                )  # which holds the message, and so its id
        return conversation

    def forget(self) -> None:
        """Let go of the messages that were read: none of them comes again."""
        self._known.clear()

    def _message(
        self, message: Message, index: int, content_format: ContentFormat, media: list[Media]
    ) -> Message:
        where = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str):
            raise UnusableInputError("a message has no role", field=where, wanted='a "role"')
        content = message.get("content")
        if role == "system" and self._rules.strips_billing_header:
            content = _without_billing_header(content)
        read: Message = {"role": role, "content": self._content(content, where, content_format, media, index)}
        if role == "assistant":
            calls = message.get("tool_calls")
            if isinstance(calls, list) and calls:
                read["tool_calls"] = [
                    self._tool_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)
                ]
            reasoning = message.get("reasoning")
            if reasoning is None:
                reasoning = message.get("reasoning_content")
            if reasoning is not None:
                read["reasoning"] = read["reasoning_content"] = reasoning
        elif role == "tool":
            if message.get("tool_call_id") is not None:
                read["tool_call_id"] = message["tool_call_id"]
            read["content"] = _tool_text(read["content"])
        elif role == "developer" and message.get("tools") is not None:
            read["tools"] = message["tools"]
        for key in ("name", "task"):
            if isinstance(message.get(key), str):
                read[key] = message[key]
        return read

    def _content(
        self, content: Any, where: str, content_format: ContentFormat, media: list[Media], index: int
    ) -> str | list[Any]:
        if isinstance(content, str):
            return content if content_format == "string" else [{"type": "text", "text": content}]
        if content is None:
            return "" if content_format == "string" else []
        if not isinstance(content, list):
            raise UnusableInputError(
                "content of an unknown kind",
                field=f"{where}.content",
                found=type(content).__name__,
                wanted="a string, a list of parts or null",
            )
        parts: list[Any] = []
        front: list[str] = []
        for number, part in enumerate(content):
            item = _part(part, f"{where}.content[{number}]")
            if isinstance(item, Media):
                placeholder = self._placeholders.get(item.modality)
                written = content_format == "openai" or placeholder is not None
                media.append(Media(item.modality, item.part, index, written))
                if content_format == "openai":
                    parts.append({"type": item.modality, **_extra_fields(item.part)})
                elif placeholder is not None:
                    front.append(placeholder)
            elif item is not None:
                parts.append(item)
        if content_format == "openai":
            return parts
        return "\n".join([*front, *(_text_of(part) for part in parts)])

    def _tool_call(self, call: Any, where: str) -> dict[str, Any]:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type", "function") != "function":
            raise UnusableInputError("a tool call that is no function call", field=where)
        return {**call, "function": {**function, "arguments": self._parsed(function.get("arguments"), where)}}

    def _parsed(self, arguments: Any, where: str) -> dict[str, Any]:
        if isinstance(arguments, dict):
            return arguments
        if not isinstance(arguments, str) or not arguments:
            return {}
        known = self._arguments.get(arguments)
        if known is None:
            try:
                value = json.loads(arguments)
            except (ValueError, RecursionError) as error:
                if self._rules.malformed_arguments == "refuse":
                    raise UnusableInputError(
                        "tool-call arguments that are not JSON; this release refuses the request",
                        field=f"{where}.function.arguments",
                        wanted="a JSON object",
                    ) from error
                value = {}
            known = value if isinstance(value, dict) else {}
            self._chars += len(arguments)
            if self._chars > _MAX_ARGUMENTS_CHARS:
                self._arguments.clear()
                self._chars = len(arguments)
            self._arguments[arguments] = known
        self._keep(known)
        return known


def merge_developer_into_system(messages: list[Message]) -> list[Message]:
    """What becomes of a conversation with `developer` messages whose template does not know that role.

    They become system messages, and all system messages one, at the front, texts apart by a blank line.
    """
    if not any(message["role"] == "developer" for message in messages):
        return messages
    renamed = [
        {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}
        if message["role"] == "developer"
        else message
        for message in messages
    ]
    system = [message for message in renamed if message["role"] == "system"]
    if len(system) == 1 and renamed[0] is system[0]:
        return renamed
    texts = [text for text in (_joined(message["content"]) for message in system) if text]
    rest = [message for message in renamed if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *rest]


def dump_tool(tool: Any) -> Any:
    """A tool as the engine's API model writes it again: known keys in its order, nulls for what is missing."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return tool
    written = {
        "name": function.get("name"),
        "description": function.get("description"),
        "parameters": function.get("parameters"),
    }
    defer = tool.get("defer_loading")
    inner = function.get("defer_loading")
    if function.get("strict") is not None:
        written["strict"] = function["strict"]
    if inner is not None or defer is not None:
        written["defer_loading"] = inner if inner is not None else defer
    dumped: dict[str, Any] = {"type": "function", "function": written}
    if defer is not None:
        dumped["defer_loading"] = defer
    return dumped


def _part(part: Any, where: str) -> dict[str, Any] | Media | None:
    """One content part: text or a tool reference as a dict, a media item, or None for an empty text part."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise UnusableInputError("a content part of an unknown kind", field=where, found=type(part).__name__)
    kind = part.get("type")
    if kind in _TEXT_FIELD:
        text = part.get(_TEXT_FIELD[kind])
        if text is None:
            return None
        if not isinstance(text, str):
            raise UnusableInputError("a text part without a text", field=where, found=type(text).__name__)
        return {"type": "text", "text": text, **_extra_fields(part)}
    if kind == "tool_reference":
        return {"type": "tool_reference", "name": part.get("name")}
    if kind is None:
        kind = next((key for key in part if key in _MODALITY), None)
    modality = _MODALITY.get(kind) if isinstance(kind, str) else None
    if modality is None:
        raise UnusableInputError(
            "an unknown content part", field=where, wanted="text, image_url, input_audio, video_url, …"
        )
    return Media(modality, part, 0, in_text=False)


def _extra_fields(part: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that the API does not define travel on to the template (`cache_control` and the like)."""
    return {key: value for key, value in part.items() if key not in _KNOWN_FIELDS}


def _text_of(part: Mapping[str, Any]) -> str:
    return str(part["name"] if part["type"] == "tool_reference" else part["text"])


def _joined(content: str | list[Any]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)


def _tool_text(content: str | list[Any]) -> str | list[Any]:
    """A tool result is text whatever the format, unless a part is something else."""
    if isinstance(content, str) or any(part.get("type") != "text" for part in content):
        return content
    return _joined(content)


def _without_billing_header(content: Any) -> Any:
    """Drop the first line of each system text that starts with the header; a text of that line only goes."""
    parts = [content] if isinstance(content, str) else content
    if not isinstance(parts, list):
        return content
    kept: list[Any] = []
    for part in parts:
        in_part = isinstance(part, dict) and part.get("type") == "text"
        text = part.get("text") if in_part else part
        if not isinstance(text, str) or not text.startswith(BILLING_HEADER):
            kept.append(part)
            continue
        rest = text.partition("\n")[2]
        if rest:
            kept.append({**part, "text": rest} if in_part else rest)
    if isinstance(content, str):
        return kept[0] if kept else None
    return kept
