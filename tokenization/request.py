"""One logged request, as every reader hands it on: no tokens yet, no cache, no file handling.

Exactly one of `messages`, `text`, `token_ids` and `block_hashes` is set.
"""

from __future__ import annotations

from typing import Any

import msgspec

Message = dict[str, Any]


class Identity(msgspec.Struct, frozen=True):
    """What separates one cache namespace from another: prefixes are shared within equal identities only.

    `lora` is the adapter's name and `lora_path` its path (both are part of the engine's key), `cache_salt`
    the request's salt, `tenant` a customer or key where the log names one.
    """

    model: str = ""
    lora: str | None = None
    lora_path: str | None = None
    cache_salt: str | None = None
    tenant: str | None = None


class Request(msgspec.Struct, kw_only=True):
    """A prompt as it was sent, with what is known about its arrival, its answer and its origin.

    Attributes:
        id: unique in the trace; readers number duplicates.
        arrival: seconds, on one clock per trace; None where the log has no time.
        messages: chat messages in the OpenAI shape (content may be a string, a list of parts or None).
        text: a completions prompt, not templated.
        token_ids: prompt ids as they are.
        block_hashes: one id per block of `hash_block_size` tokens; equal ids mean an equal prefix up to and
            including that block; the last block may be partial.
        prompt_tokens: prompt length in tokens as the server counted it, where logged (required with `block_hashes`).
        cached_tokens: how many of them the server took from its cache, where logged.
        tools, documents, chat_template, chat_template_kwargs, add_generation_prompt, continue_final_message,
            add_special_tokens: as the engine's API takes them; None means the engine's default.
        tool_choice: "none" where the request rules its tools out.
        output: the assistant message, a completion text, or output ids, where logged.
        output_tokens: length of the answer in tokens where logged.
        session: explicit conversation or session id.
        parent: id of the request that this one continues, where logged.
        server: replica, worker or API base that served it.
        endpoint: "chat", "completions", "responses" or "messages".
        source: "file:line" (line numbers from 1) for error messages.
    """

    id: str
    arrival: float | None = None
    messages: list[Message] | None = None
    text: str | None = None
    token_ids: list[int] | None = None
    block_hashes: list[int] | None = None
    hash_block_size: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    tool_choice: str | None = None
    output: Message | str | list[int] | None = None
    output_tokens: int | None = None
    session: str | None = None
    parent: str | None = None
    server: str | None = None
    identity: Identity = Identity()
    endpoint: str = "chat"
    source: str = ""
