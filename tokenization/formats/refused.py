"""Files that people take for traces and that hold no whole prompts: what each is, why it will not do, what to do.

Asked before the formats, many of which would take a list of messages for a prompt; `--format` overrides it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvtune.tokenization.containers.item import SHIPPED_AT, WRAPPER
from kvtune.tokenization.formats.format import Record

_CAPTURE = "kvtune capture records whole requests (docs/getting-a-trace.md#i-have-nothing)"


@dataclass(frozen=True)
class Refused:
    """A kind of record that holds no whole prompt.

    Attributes:
        what: what the record is, in words.
        lacks: why it will not do.
        hint: what to do instead.
        recognises: whether a record is of this kind.
        reason: the word that counts it, see `rejects.REASONS`.
        field: the field that is not there, None where the record as a whole is at fault.
    """

    what: str
    lacks: str
    hint: str
    recognises: Callable[[Record], bool]
    reason: str = "no_request"
    field: str | None = None


def _has(record: Record, *names: str) -> bool:
    return all(name in record for name in names)


def _is_claude_code(record: Record) -> bool:
    return ("sessionId" in record and ("uuid" in record or "parentUuid" in record)) or _has(
        record, "leafUuid", "summary"
    )


def _is_codex(record: Record) -> bool:
    kinds = ("session_meta", "response_item", "turn_context", "event_msg", "compacted")
    return record.get("type") in kinds and isinstance(record.get("payload"), dict)


def _is_gemini_session(record: Record) -> bool:
    return _has(record, "sessionId", "messages") and ("projectHash" in record or "lastUpdated" in record)


def _is_gemini_body(record: Record) -> bool:
    held = record.get("request", record)
    return isinstance(held, dict) and isinstance(held.get("contents"), list) and "messages" not in held


def _is_fine_tuning(record: Record) -> bool:
    messages = record.get("messages")
    if not isinstance(messages, list) or not messages:
        return False
    own = record.keys() - {SHIPPED_AT, WRAPPER}
    roles = [one.get("role") for one in messages if isinstance(one, dict)]
    return (
        own <= {"messages", "tools", "functions", "parallel_tool_calls", "weight"}
        and len(roles) == len(messages)
        and roles[-1] == "assistant"
        and "user" in roles
    )


def _is_open_webui(record: Record) -> bool:
    chat = record.get("chat")
    return isinstance(chat, dict) and isinstance(chat.get("history"), dict)


def _is_lengths(value: Any) -> bool:
    return isinstance(value, dict) and "replay" not in value and "input_tokens" in value


REFUSED: tuple[Refused, ...] = (
    Refused(
        "a Claude Code session",
        "it lacks the system prompt and the tools, most of each prompt",
        _CAPTURE,
        _is_claude_code,
    ),
    Refused(
        "a Codex session",
        "it lacks the system prompt and the tools, most of each prompt",
        _CAPTURE,
        _is_codex,
    ),
    Refused(
        "a Gemini CLI session",
        "it lacks the system prompt and the tools, most of each prompt",
        _CAPTURE,
        _is_gemini_session,
    ),
    Refused(
        "a body of the Gemini API",
        "vLLM does not serve this API",
        "log the requests that reach vLLM: " + _CAPTURE,
        _is_gemini_body,
    ),
    Refused(
        "a chat exported from Open WebUI",
        "it lacks the tools, the files and the order of requests",
        _CAPTURE,
        _is_open_webui,
    ),
    Refused(
        "a chat exported from LibreChat",
        "it lacks the tools, the files and the order of requests",
        _CAPTURE,
        lambda record: _has(record, "conversationId", "messages") and "endpoint" in record,
    ),
    Refused(
        "fine-tuning data",
        "each conversation ends with its output, so it is no request that a server received",
        _CAPTURE,
        _is_fine_tuning,
    ),
    Refused(
        "a batch's output",
        "it holds outputs, not prompts",
        "analyze the batch's input file, or see docs/getting-a-trace.md",
        lambda record: _has(record, "custom_id", "response") and "body" not in record,
        field="body",
    ),
    Refused(
        "a Dynamo trace without its replay fields",
        "lengths say nothing about prefixes",
        "start Dynamo with DYN_REQUEST_TRACE=1 (docs/getting-a-trace.md)",
        lambda record: "schema" in record and _is_lengths(record.get("request")),
        "lengths_only",
    ),
    Refused(
        "a line of TGI's log",
        "TGI logs no prompts",
        _CAPTURE,
        lambda record: str(record.get("target", "")).startswith("text_generation_router"),
    ),
)


_MARKS = frozenset(
    {
        "sessionId",
        "leafUuid",
        "payload",
        "contents",
        "request",
        "messages",
        "chat",
        "schema",
        "target",
        "response",
    }
)


def refusal(record: Record) -> Refused | None:
    """The kind of a record that holds no whole prompt; None for any other."""
    if _MARKS.isdisjoint(record):
        return None
    return next((one for one in REFUSED if one.recognises(record)), None)
