"""LangSmith runs: SDK and API JSON, pages of a query, rows of the bulk export; model calls (`run_type` llm) only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.nested import as_json
from kvtune.tokenization.formats.outcome import FAILED, LOGGED_TWICE
from kvtune.tokenization.rejects import RecordError, describe

_UPDATE = "LangSmith updates of runs (outputs): the run itself has the prompt"
_TAKEN = ("tools", "model", "cache_salt", "chat_template_kwargs", "extra_body")


def _recognises(record: Record) -> bool:
    return "run_type" in record and ("inputs" in record or "outputs" in record)


def _read(record: Record, place: Place) -> Iterable[Draft]:
    if record["run_type"] != "llm":
        place.file.note("LangSmith runs that are no model calls: left out")
        return []
    inputs = as_json(record.get("inputs"))
    if not inputs:
        place.file.note(_UPDATE)
        return []
    if record.get("error"):
        place.file.note(FAILED)
        return []
    name = fields.name_in(record, ("id",))
    seen: set[str] = place.file.memory.setdefault("langsmith", set())
    if name is not None and name in seen:
        place.file.note(LOGGED_TWICE)
        return []
    seen.add(name or place.where)
    if not isinstance(inputs, dict):
        raise RecordError("wrong_type", "inputs", found=describe(inputs), wanted="an object")
    outputs = as_json(record.get("outputs"))
    extra = as_json(record.get("extra"))
    body = _body(inputs, extra if isinstance(extra, dict) else {})
    origin = origin_of(
        record,
        place,
        body,
        outputs,
        id=name or place.where,
        session=fields.name_in(_metadata(extra), ("session_id", "thread_id", "conversation_id"))
        or fields.name_in(record, ("thread_id", "trace_id")),
        time=fields.time_of(record, ("start_time",)),
    )
    return read_body(body, origin, "inputs")


def _metadata(extra: Any) -> Record:
    held = extra.get("metadata") if isinstance(extra, dict) else None
    return held if isinstance(held, dict) else {}


def _body(inputs: Record, extra: Record) -> Record:
    """The body: the SDK's wrapper keeps it whole, LangChain its messages, with tools and model beside them."""
    body = dict(inputs)
    parameters = extra.get("invocation_params")
    for held in (parameters, _metadata(extra)):
        if isinstance(held, dict):
            body = {name: held[name] for name in _TAKEN if held.get(name) is not None} | body
    messages = body.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[0], list):
        body["messages"] = messages[0]
    prompts = body.pop("prompts", None)
    if messages is None and isinstance(prompts, list):
        body["prompt"] = prompts
    more = body.pop("extra_body", None)
    return body | more if isinstance(more, dict) else body


FORMAT = Format(
    name="langsmith",
    about="LangSmith runs: SDK and API JSON, query pages, bulk export",
    recognised_by="run_type and inputs",
    example='{"id": "r1", "run_type": "llm", "start_time": "2026-01-02T03:04:05Z", "inputs": {"model": "m", '
    '"messages": [{"role": "user", "content": "Hi"}]}, "outputs": {}}',
    recognises=_recognises,
    read=_read,
)
