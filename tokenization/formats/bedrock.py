"""Amazon Bedrock's model invocation log: Converse bodies in OpenAI's shape, and the bodies of InvokeModel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import chat_draft, origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.messages import checked_messages
from kvtune.tokenization.formats.nested import as_json
from kvtune.tokenization.formats.outcome import FAILED
from kvtune.tokenization.formats.parts import Part, content_of, message, tool_call
from kvtune.tokenization.formats.tools import openai_tools
from kvtune.tokenization.rejects import RecordError, describe
from kvtune.tokenization.request import Message

_BODY = "input.inputBodyJson"


def _read(record: Record, place: Place) -> Iterable[Draft]:
    if record.get("errorCode"):
        place.file.note(FAILED)
        return []
    body = as_json(fields.dig(record, _BODY))
    if not isinstance(body, dict):
        found = "a body kept in S3" if fields.dig(record, "input.inputBodyS3Path") else describe(body)
        raise RecordError(
            "no_request", _BODY, found=found, wanted="the body (large ones are S3 objects: read those)"
        )
    output = as_json(fields.dig(record, "output.outputBodyJson"))
    origin = origin_of(
        record,
        place,
        {"model": record.get("modelId")} | body,
        _answer(output) if isinstance(output, dict) and "output" in output else output,
        id=fields.name_in(record, ("requestId",)) or place.where,
        time=fields.time_of(record, ("timestamp",)),
        output_tokens=_output_tokens(record),
    )
    if not str(record.get("operation", "")).startswith("Converse"):
        return read_body(body, origin, _BODY)
    messages = [message("system", text) for text in [_system(body.get("system"))] if text]
    held = body.get("messages")
    for number, one in enumerate(held if isinstance(held, list) else ()):
        messages += _converse(one, f"{_BODY}.messages[{number}]")
    tools = fields.dig(body, "toolConfig.tools")
    own = (
        [one for one in tools if isinstance(one, dict) and "toolSpec" in one]
        if isinstance(tools, list)
        else None
    )
    name = f"{_BODY}.messages"
    return [
        chat_draft(origin, checked_messages(messages, name), openai_tools(own or None, f"{_BODY}.toolConfig"))
    ]


def _output_tokens(record: Record) -> int | None:
    output = record.get("output")
    return fields.whole_number(output, ("outputTokenCount",)) if isinstance(output, dict) else None


def _answer(output: Record) -> Message | None:
    held = fields.dig(output, "output.message")
    found = _converse(held, "output") if isinstance(held, dict) else []
    return found[0] if found else None


def _system(blocks: Any) -> str:
    texts = [one.get("text") for one in blocks if isinstance(one, dict)] if isinstance(blocks, list) else []
    return "\n".join(text for text in texts if isinstance(text, str))


def _converse(one: Any, field: str) -> list[Message]:
    """A message; each tool result in it is a message of its own, before the rest."""
    if not isinstance(one, dict) or not isinstance(one.get("content"), list):
        raise RecordError("wrong_type", field, found=describe(one), wanted="a message with content blocks")
    results: list[Message] = []
    calls: list[dict[str, Any]] = []
    parts: list[Part] = []
    thoughts: list[str] = []
    for block in one["content"]:
        held = block if isinstance(block, dict) else {}
        use, result = held.get("toolUse"), held.get("toolResult")
        thought = fields.dig(held, "reasoningContent.reasoningText.text")
        if isinstance(held.get("text"), str):
            parts.append({"type": "text", "text": held["text"]})
        elif isinstance(use, dict):
            calls.append(tool_call(use.get("toolUseId"), use.get("name"), use.get("input") or {}))
        elif isinstance(result, dict):
            text = _result(result.get("content"))
            results.append(message("tool", text, tool_call_id=result.get("toolUseId")))
        elif isinstance(thought, str):
            thoughts.append(thought)
        elif "cachePoint" not in held:
            kind = next(iter(held), "nothing")
            if kind == "text":
                raise RecordError(
                    "wrong_type", f"{field}.text", found=describe(held["text"]), wanted="a string"
                )
            parts.append({"type": kind})
    role = one.get("role")
    if parts or calls or not results:
        results.append(
            message(
                role if isinstance(role, str) else "",
                content_of(parts),
                reasoning="\n".join(thoughts),
                tool_calls=calls,
            )
        )
    return results


def _result(blocks: Any) -> str:
    texts = []
    for one in blocks if isinstance(blocks, list) else ():
        held = one if isinstance(one, dict) else {}
        text = held.get("text")
        texts.append(text if isinstance(text, str) else msgspec.json.encode(held.get("json")).decode())
    return "\n".join(texts)


FORMAT = Format(
    name="bedrock",
    about="Amazon Bedrock model invocation logs",
    recognised_by="schemaType ModelInvocationLog",
    example='{"schemaType": "ModelInvocationLog", "timestamp": "2026-01-02T03:04:05Z", "requestId": "r1", '
    '"operation": "Converse", "modelId": "m", "input": {"inputBodyJson": {"messages": [{"role": "user", '
    '"content": [{"text": "Hi"}]}]}}}',
    recognises=lambda record: record.get("schemaType") == "ModelInvocationLog",
    read=_read,
)
