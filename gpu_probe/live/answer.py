"""One streamed completion: what its events say, and when they came.

Knows the events of completions and chats; nothing of connections.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from kvtune.tokenization.errors import MissingDependencyError
from kvtune.tokenization.trace import UInt32


@dataclass
class Answer:
    """One streamed completion. Times are `time.perf_counter` seconds.

    Attributes:
        sent: when the request was handed to the socket. events: when each event with output arrived.
        finished: the end of the stream.
        prompt_tokens, completion_tokens, cached_tokens: the server's own count; `cached_tokens` None where not said.
        prompt_ids: uint32 ids that the server made of the prompt, where it was asked to return them.
    """

    sent: float
    events: list[float] = field(default_factory=list)
    finished: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    prompt_ids: UInt32 | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    prompt_token_ids: list[int] | None = None

    @property
    def has_output(self) -> bool:
        delta = self.delta or _Delta()
        said = self.text or delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls
        return bool(said or self.finish_reason)


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    prompt_token_ids: list[int] | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Event)


def take_event(data: bytes, now: float, answer: Answer, where: str) -> None:
    """Add one event to an answer.

    Raises:
        MissingDependencyError: it is no event of a completion, or says that the server failed.
    """
    try:
        event = _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise MissingDependencyError(
            f"the answer is no completion: {error}", where=where, wanted="a vLLM server"
        ) from None
    if event.error is not None:
        found = kind_of_error({"error": event.error})
        raise MissingDependencyError("the server gave an error inside a stream", where=where, found=found)
    if any(choice.has_output for choice in event.choices):
        answer.events.append(now)
    ids = event.prompt_token_ids or next(
        (choice.prompt_token_ids for choice in event.choices if choice.prompt_token_ids), None
    )
    if ids is not None:
        answer.prompt_ids = np.array(ids, dtype=np.int64).astype(np.uint32)
    if event.usage is not None:
        answer.prompt_tokens = event.usage.prompt_tokens
        answer.completion_tokens = event.usage.completion_tokens
        details = event.usage.prompt_tokens_details
        answer.cached_tokens = details.cached_tokens if details else None


def kind_of_error(document: object) -> str:
    """An error document's type and parameter. Its message is never shown, since it may quote the request."""
    inner = document.get("error", document) if isinstance(document, dict) else None
    if not isinstance(inner, dict):
        return "no reason given"
    named = [str(inner[key])[:60] for key in ("type", "param") if inner.get(key)]
    return ", ".join(named) or "no reason given"
