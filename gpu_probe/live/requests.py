"""The bodies that are sent: prompts as token ids, or the logged messages as a chat.

Knows the engine's request fields; neither sends nor measures. Bodies are made one at a time: a trace of them would
not fit in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.request import Request
from kvtune.tokenization.trace import Int64, TokenTrace

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


class Bodies(Protocol):
    """The requests of a run. `path` is where they go."""

    path: str

    def __len__(self) -> int: ...

    def body(self, index: int) -> bytes:
        """The JSON of one request."""


@dataclass(frozen=True)
class Sampling:
    """What every request of a run has in common. `salt` separates a run from everything cached before it."""

    model: str
    salt: str | None = None

    def fields(self, output_tokens: int, namespace: int) -> dict[str, Any]:
        """Greedy, streamed, exactly `output_tokens` long; namespaces are kept apart by salts."""
        salt = self.salt
        if namespace:
            salt = f"{salt or 'kvtune'}-{namespace}"
        return {
            "model": self.model,
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"cache_salt": salt} if salt else {}),
        }


class TokenBodies:
    """Prompts as ids, so that the server's own tokenizer and template play no part.

    Args:
        output_tokens: int64[R], how much each request generates.

    Raises:
        UnusableInputError: a trace of block hashes, which has no tokens.
    """

    path = COMPLETIONS

    def __init__(self, trace: TokenTrace, output_tokens: Int64, sampling: Sampling) -> None:
        if trace.span != 1:
            raise UnusableInputError(
                "a trace of block hashes holds no prompts that a server could be sent",
                wanted="messages, prompts or token ids",
            )
        self._trace = trace
        self._output_tokens = output_tokens
        self._sampling = sampling

    def __len__(self) -> int:
        return len(self._trace)

    def body(self, index: int) -> bytes:
        fields = self._sampling.fields(int(self._output_tokens[index]), int(self._trace.namespace[index]))
        return msgspec.json.encode({**fields, "prompt": self._trace.prompt(index).tolist()})


class ChatBodies:
    """The logged messages, so that the server's own template and tokenizer are measured too.

    Raises:
        UnusableInputError: a request that was logged without messages.
    """

    path = CHAT

    def __init__(
        self, requests: Sequence[Request], trace: TokenTrace, output_tokens: Int64, sampling: Sampling
    ) -> None:
        plain = next((request for request in requests if request.messages is None), None)
        if plain is not None:
            raise UnusableInputError(
                "was not logged as a chat",
                where=plain.source or plain.id,
                field="--as-chat",
                wanted="messages in every request",
                way_out="leave --as-chat out to send token ids",
            )
        self._requests = requests
        self._trace = trace
        self._output_tokens = output_tokens
        self._sampling = sampling

    def __len__(self) -> int:
        return len(self._requests)

    def body(self, index: int) -> bytes:
        fields = self._sampling.fields(int(self._output_tokens[index]), int(self._trace.namespace[index]))
        chat = chat_fields(self._requests[index])
        if chat.get("tools"):
            chat["tool_choice"] = "none"  # tools stay in the prompt, and no parser for calls is asked for
        return msgspec.json.encode({**fields, **chat, "return_token_ids": True})


def chat_fields(request: Request) -> dict[str, Any]:
    """What decides a chat's prompt, as the engine's API names it; what was not logged is left out."""
    names = (
        "messages",
        "tools",
        "documents",
        "chat_template",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
    )
    return {name: value for name in names if (value := getattr(request, name)) is not None}
