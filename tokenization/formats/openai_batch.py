"""OpenAI Batch lines, and the samples' format: a batch line with `timestamp`, `conversation`, `turn` and `response`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from kvtune.tokenization.clock import Moment
from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.nested import as_json
from kvtune.tokenization.formats.responses_history import with_history
from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.request import Request

_ISOLATED = "isolated_by"  # what --isolate-by kept apart, in lines that kvtune wrote
_URLS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}


def _recognises(record: Record) -> bool:
    return ("custom_id" in record or "url" in record) and ("body" in record or "response" in record)


def _read(record: Record, place: Place) -> Iterable[Draft]:
    if "body" not in record:
        raise RecordError(
            "no_request",
            "body",
            found="a batch's output",
            wanted="the batch's input, which holds the prompts",
        )
    body = as_json(record["body"])
    url = record.get("url")
    held = body if isinstance(body, dict) else {}
    origin = origin_of(record, place, held, record.get("response"), time=_arrival(record))
    apart = fields.name_in(record, (_ISOLATED,))
    if apart is not None and origin.identity.tenant is None:
        identity = place.file.shared(msgspec.structs.replace(origin.identity, tenant=apart))
        origin = origin.renamed(origin.id, identity=identity)
    return read_body(
        with_history(body, record.get("response"), place),
        origin,
        "body",
        url if isinstance(url, str) else None,
    )


def _arrival(record: Record) -> Moment | None:
    """When the request came: as logged, or by its end and duration (nginx, by the log format of the docs)."""
    ended, took = record.get("ended"), record.get("took")
    if isinstance(ended, float) and isinstance(took, float | int) and "timestamp" not in record:
        return Moment(round(ended - took, 3))
    return fields.time_of(record)


def write_line(request: Request) -> bytes:
    """A request as a line of this format, without its line end; block hashes have no such line."""
    body: dict[str, Any] = {"model": request.identity.model}
    if request.messages is not None:
        body["messages"] = request.messages
    else:
        body["prompt"] = request.text if request.text is not None else request.token_ids
    for name in (
        "tools",
        "documents",
        "chat_template",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "tool_choice",
    ):
        value = getattr(request, name)
        if value is not None:
            body[name] = value
    if request.identity.cache_salt is not None:
        body["cache_salt"] = request.identity.cache_salt
    output = {"text": request.output} if isinstance(request.output, str) else request.output
    line: dict[str, Any] = {
        "custom_id": request.id,
        "method": "POST",
        "url": _URLS["chat" if request.messages is not None else "completions"],
        "body": body,
        "timestamp": request.arrival,
        "conversation": request.session,
        "response": None if isinstance(output, list) else output,
    }
    known: dict[str, Any] = {
        "lora": request.identity.lora,
        "lora_path": request.identity.lora_path,
        _ISOLATED: request.identity.tenant,
        "server": request.server,
        "output_tokens": request.output_tokens,
    }
    if request.prompt_tokens is not None:
        cached = request.cached_tokens
        details = None if cached is None else {"cached_tokens": cached}
        known["usage"] = {"prompt_tokens": request.prompt_tokens, "prompt_tokens_details": details}
    line |= {name: value for name, value in known.items() if value is not None}
    return msgspec.json.encode(line)


FORMAT = Format(
    name="openai-batch",
    about="OpenAI Batch input, and kvtune's own samples (with timestamp, conversation, response)",
    recognised_by="body and custom_id or url",
    example='{"custom_id": "a/0", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": '
    '[{"role": "user", "content": "Hi"}]}, "timestamp": 0.5}',
    recognises=_recognises,
    read=_read,
)
