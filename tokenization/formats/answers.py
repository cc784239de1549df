"""Answers, from any shape in which logs keep them; one that cannot be read is no answer and never an error."""

from __future__ import annotations

from typing import Any

from kvtune.tokenization.formats.anthropic import assistant_message
from kvtune.tokenization.formats.fields import dig
from kvtune.tokenization.formats.responses import answer_of
from kvtune.tokenization.request import Message

Output = Message | str | list[int] | None


def output_of(response: Any) -> tuple[Output, int | None]:
    """The answer (a message, or a completion's text) and its length in tokens, None where not logged.

    Takes OpenAI's chat and completion responses, Responses and Anthropic's messages, a Batch's output, and an
    assistant message or text by itself.
    """
    held = response[0] if isinstance(response, list) and len(response) == 1 else response
    if isinstance(held, dict) and isinstance(held.get("body"), dict):
        held = held["body"]
    if isinstance(held, str):
        return held or None, None
    if not isinstance(held, dict):
        return None, None
    return _answer(held), answer_tokens(held)


def _answer(response: dict[str, Any]) -> Output:
    choice = dig(response, "choices.0")
    if isinstance(choice, dict):
        message = choice.get("message")
        if isinstance(message, dict):
            return message
        text = choice.get("text")
        return text if isinstance(text, str) else None
    if isinstance(response.get("output"), list):
        return answer_of(response)
    if response.get("role") == "assistant":
        content = response.get("content")
        return assistant_message(content) if response.get("type") == "message" else response
    text = response.get("text")
    return text if isinstance(text, str) else None


def answer_tokens(record: dict[str, Any]) -> int | None:
    """The answer's length by the `usage` in a response, or beside one; None where there is none."""
    usage = record.get("usage")
    if isinstance(usage, dict):
        for name in ("completion_tokens", "output_tokens"):
            value = usage.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
    return None
