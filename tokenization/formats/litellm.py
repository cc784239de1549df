"""LiteLLM: the standard logging payload of its callbacks, and rows of its spend logs where they store prompts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.nested import as_json
from kvtune.tokenization.rejects import RecordError, describe

_REDACTED = ("redacted-by-litellm", "redacted by litellm")
_TEAMS = ("user_api_key_team_id", "user_api_key_org_id")


def _recognises(record: Record) -> bool:
    return "call_type" in record and (
        "startTime" in record or "model_group" in record or "messages" in record
    )


def _read(record: Record, place: Place) -> Iterable[Draft]:
    if record.get("cache_hit") in (True, "True", "true"):
        place.file.note(
            "Requests that the gateway answered from its own cache never reached an engine: left out"
        )
        return []
    metadata = as_json(record.get("metadata"))
    metadata = metadata if isinstance(metadata, dict) else {}
    sent = as_json(record.get("proxy_server_request"))
    sent = as_json(sent.get("body", sent)) if isinstance(sent, dict) else None
    prompt = as_json(record.get("messages"))
    if not prompt and isinstance(sent, dict) and ("messages" in sent or "prompt" in sent or "input" in sent):
        body = sent
    else:
        parameters = record.get("model_parameters")
        body = dict(parameters) if isinstance(parameters, dict) else {}
        body["prompt" if isinstance(prompt, str) else "messages"] = prompt
    _refuse_redacted(body)
    known: dict[str, Any] = {}
    if (team := fields.name_in(metadata, _TEAMS)) is not None:
        place.file.note(
            "Teams are taken as tenants that share nothing; an engine keeps them apart by cache_salt only"
        )
        known["identity"] = fields.identity_of(body, record, place, tenant=team)
    session = fields.name_in(record, ("session_id", "litellm_session_id", "trace_id"))
    identifier = fields.name_in(record, ("id", "request_id", "litellm_call_id"))
    origin = origin_of(
        record,
        place,
        body,
        as_json(record.get("response")),
        session=session,
        id=identifier or place.where,
        **known,
    )
    return read_body(body, origin, "")


def _refuse_redacted(body: Record) -> None:
    messages = body.get("messages")
    for one in messages if isinstance(messages, list) else ():
        if isinstance(one, dict) and one.get("content") in _REDACTED:
            raise RecordError("no_request", "messages", found="redacted content", wanted="content in the log")
    if not body.get("messages") and not body.get("prompt") and not body.get("input"):
        raise RecordError(
            "no_request", "messages", found=describe(body.get("messages")), wanted="content in the log"
        )


FORMAT = Format(
    name="litellm",
    about="LiteLLM's standard logging payload and spend logs (with prompts stored)",
    recognised_by="call_type with startTime, model_group or messages",
    example='{"id": "r1", "call_type": "acompletion", "startTime": 1760000000.5, "model": "m", "api_base": '
    '"http://gpu-0:8000", "messages": [{"role": "user", "content": "Hi"}]}',
    recognises=_recognises,
    read=_read,
)
