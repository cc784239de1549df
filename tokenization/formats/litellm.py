"""LiteLLM: the standard logging payload of its callbacks, and rows of its spend logs where they store prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, FileState, Format, Lost, Place, Record
from kvtune.tokenization.formats.nested import as_json
from kvtune.tokenization.formats.outcome import NO_ENGINE, NO_ENGINE_FIELDS, OTHER_OPERATION
from kvtune.tokenization.formats.responses_history import with_history
from kvtune.tokenization.rejects import RecordError, describe
from kvtune.tokenization.request import Request

_REDACTED = ("redacted-by-litellm", "redacted by litellm")
_TEAMS = ("user_api_key_team_id", "user_api_key_org_id")
_SHARED = (
    "Requests of several teams: they share one cache, as in the engine (--isolate-by FIELD separates them)"
)
_VLLM = "hosted_vllm"
_MOST_NESTED = 64
_LATEST_TURN = frozenset({"model", "messages", "input"})
_OVERHEAD = 200  # tokens that a template and its default system prompt add at most
_PROMPTS = frozenset({"messages", "prompt", "input"})
_ENDPOINTS = {
    "completion": "/v1/chat/completions",
    "text_completion": "/v1/completions",
    "responses": "/v1/responses",
    "anthropic_messages": "/v1/messages",
}
"""Call types whose prompts an engine caches, without the "a" of their asynchronous twins."""


def _recognises(record: Record) -> bool:
    return "call_type" in record and (
        "startTime" in record or "model_group" in record or "messages" in record
    )


def _read(record: Record, place: Place) -> Iterable[Draft]:
    if record.get("cache_hit") in (True, "True", "true"):
        place.file.note(NO_ENGINE)
        return []
    kind = str(record["call_type"])
    kind = kind if kind in _ENDPOINTS else kind.removeprefix("a")
    if kind not in _ENDPOINTS:
        place.file.note(OTHER_OPERATION)
        return []
    metadata = as_json(record.get("metadata"))
    if isinstance(metadata, dict) and (team := fields.name_in(metadata, _TEAMS)) is not None:
        place.file.memory.setdefault("litellm", Counter())[team] += 1
    body, endpoint = _body(record, kind, place)
    _refuse_redacted(body)
    session = fields.name_in(record, ("session_id", "litellm_session_id", "trace_id"))
    identifier = fields.name_in(record, ("id", "request_id", "litellm_call_id"))
    origin = origin_of(
        record,
        place,
        body,
        as_json(record.get("response")),
        session=session,
        id=identifier or place.where,
    )
    body = with_history(body, as_json(record.get("response")), place)
    drafts = list(read_body(body, origin, "", endpoint))
    _remember_turns(record, body, drafts, place)
    return drafts


def _remember_turns(record: Record, body: Record, drafts: list[Draft], place: Place) -> None:
    """Notes requests that may be the latest turn of a longer one, and those that certainly are.

    With `spend_logs_prompt_storage: latest_turn` the row holds the model and one user's message, while the server
    counted more tokens than that message has characters.
    """
    turns = body.get("messages", body.get("input"))
    single = isinstance(turns, str) or (isinstance(turns, list) and len(turns) == 1)
    if not single or not _LATEST_TURN.issuperset(body):
        return
    counted = record.get("prompt_tokens")
    told = place.file.memory.setdefault("litellm-turns", _Turns())
    told.requests += (draft.request for draft in drafts)
    told.certain += isinstance(counted, int) and counted > _OVERHEAD + len(str(turns))


@dataclass
class _Turns:
    """Requests of one user's message, and how many of them are certainly cut from longer ones."""

    requests: list[Request] = field(default_factory=list)
    certain: int = 0


def _body(record: Record, kind: str, place: Place) -> tuple[Record, str]:
    """The request's body, and the endpoint whose dialect it is in.

    The body that was sent to the server, else the one that came to the proxy, else what the payload says of it.
    """
    arguments = record.get("additional_args")
    sent = as_json(arguments.get("complete_input_dict")) if isinstance(arguments, dict) else None
    sent = sent or as_json(record.get("complete_input_dict"))
    if isinstance(sent, dict) and not _PROMPTS.isdisjoint(sent):
        return sent, _dialect(sent, kind)
    prompt = as_json(record.get("messages"))
    came = as_json(record.get("proxy_server_request"))
    came = as_json(came.get("body", came)) if isinstance(came, dict) else None
    if isinstance(came, dict) and not _PROMPTS.isdisjoint(came):
        if kind == "completion" and record.get("custom_llm_provider") == _VLLM and "tools" in came:
            came = came | {"tools": as_sent_to_vllm(came["tools"])}
        return came, _ENDPOINTS[kind]
    place.file.note(NO_ENGINE_FIELDS)
    parameters = as_json(record.get("model_parameters"))
    body = dict(parameters) if isinstance(parameters, dict) else {}
    extra = body.get("extra_body")
    body |= extra if isinstance(extra, dict) else {}
    if kind == "responses":
        body["input"] = prompt
    elif kind == "text_completion":
        body["prompt"] = _plain(prompt)
    elif isinstance(prompt, str):
        body["prompt"] = prompt
        return body, _ENDPOINTS["text_completion"]
    else:
        body["messages"] = prompt
        if kind == "completion" and record.get("custom_llm_provider") == _VLLM:
            body["tools"] = as_sent_to_vllm(body.get("tools"))
        if kind == "anthropic_messages" and "system" not in body:
            raise RecordError(
                "truncated_prompt",
                "system",
                found="a call of /v1/messages without its system prompt, which this payload leaves out",
                wanted="the body (spend logs with store_prompts_in_spend_logs, or docs/getting-a-trace.md's callback)",
            )
    return body, _ENDPOINTS[kind]


def as_sent_to_vllm(tools: Any, depth: int = 0) -> Any:
    """Tools as the proxy sends them to a vLLM server: without `strict` and without `additionalProperties: false`."""
    if depth > _MOST_NESTED:
        return tools
    if isinstance(tools, list):
        return [as_sent_to_vllm(one, depth + 1) for one in tools]
    if isinstance(tools, dict):
        return {
            name: as_sent_to_vllm(value, depth + 1)
            for name, value in tools.items()
            if name != "strict" and not (name == "additionalProperties" and value is False)
        }
    return tools


def _dialect(body: Record, kind: str) -> str:
    """The endpoint of a body that was sent on: the proxy translates Anthropic's and others' to chat completions."""
    if "input" in body and "messages" not in body:
        return _ENDPOINTS["responses"]
    if "prompt" in body:
        return _ENDPOINTS["text_completion"]
    return _ENDPOINTS[kind] if "system" in body else _ENDPOINTS["completion"]


def _plain(prompt: Any) -> Any:
    """A completion's prompt, which the payload writes as a user's message."""
    if isinstance(prompt, list) and prompt and all(isinstance(one, dict) for one in prompt):
        texts = [one.get("content") for one in prompt]
        return texts[0] if len(texts) == 1 else texts
    return prompt


def _refuse_redacted(body: Record) -> None:
    messages = body.get("messages")
    for one in messages if isinstance(messages, list) else ():
        if isinstance(one, dict) and one.get("content") in _REDACTED:
            raise RecordError("no_request", "messages", found="redacted content", wanted="content in the log")
    if not body.get("messages") and not body.get("prompt") and not body.get("input"):
        raise RecordError(
            "no_request", "messages", found=describe(body.get("messages")), wanted="content in the log"
        )


def _finish(file: FileState, requests: list[Request]) -> Iterable[Lost]:  # noqa: ARG001
    """Rejects rows of latest turns; says that teams share a cache, for what keeps prompts apart is `cache_salt`."""
    turns = file.memory.get("litellm-turns", _Turns())
    for request in turns.requests if turns.certain else ():
        error = RecordError(
            "truncated_prompt",
            "messages",
            found="the latest turn only",
            wanted="whole prompts (no spend_logs_prompt_storage: latest_turn in LiteLLM's general_settings)",
        )
        yield Lost(request.source, error, request)
    teams = file.memory.get("litellm", {})
    if len(teams) > 1 and file.isolate_by is None:
        file.note(_SHARED, sum(teams.values()))


FORMAT = Format(
    name="litellm",
    about="LiteLLM's standard logging payload and spend logs (with prompts stored)",
    recognised_by="call_type with startTime, model_group or messages",
    example='{"id": "r1", "call_type": "acompletion", "startTime": 1760000000.5, "model": "m", "api_base": '
    '"http://gpu-0:8000", "messages": [{"role": "user", "content": "Hi"}]}',
    recognises=_recognises,
    read=_read,
    finish=_finish,
)
