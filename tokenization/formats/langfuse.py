"""Langfuse observations: rows of the blob export (snake_case) and of the API (camelCase)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from kvtune.tokenization.clock import Moment
from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, FileState, Format, Lost, Place, Record
from kvtune.tokenization.formats.langchain_messages import split_tools
from kvtune.tokenization.formats.nested import as_json, refuse_cut_json
from kvtune.tokenization.formats.nested_calls import NestedCalls
from kvtune.tokenization.formats.outcome import FAILED, LOGGED_TWICE
from kvtune.tokenization.rejects import RecordError, describe
from kvtune.tokenization.request import Request

_MARKS = frozenset({"trace_id", "traceId", "usage_details", "usageDetails", "start_time", "startTime"})


def _recognises(record: Record) -> bool:
    return "input" in record and "type" in record and not _MARKS.isdisjoint(record)


def _read(record: Record, place: Place) -> Iterable[Draft]:
    calls = place.file.memory.setdefault("langfuse", NestedCalls())
    name = fields.name_in(record, ("id",))
    calls.saw(name, fields.name_in(record, ("parent_observation_id", "parentObservationId")))
    if record["type"] != "GENERATION":
        place.file.note("Langfuse observations that are no generations: left out")
        return []
    if record.get("level") == "ERROR":
        place.file.note(FAILED)
        return []
    body = _body(as_json(record["input"]))
    parameters = as_json(fields.first(record, ("model_parameters", "modelParameters"))[1])
    if isinstance(parameters, dict) and isinstance(parameters.get("tools"), list):
        body.setdefault("tools", parameters["tools"])
    usage = fields.first(record, ("usage_details", "usageDetails", "usage"))[1]
    usage = as_json(usage)
    model = fields.name_in(record, ("model", "provided_model_name", "providedModelName", "model_id"))
    origin = origin_of(
        record,
        place,
        {"model": model} | body if model else body,
        _answer(as_json(record.get("output"))),
        id=fields.name_in(record, ("id",)) or place.where,
        session=fields.name_in(record, ("session_id", "sessionId", "trace_id", "traceId")),
        time=fields.time_of(record, ("start_time", "startTime")),
        output_tokens=fields.whole_number(usage, ("output", "output_tokens"))
        if isinstance(usage, dict)
        else None,
    )
    drafts = list(read_body(body, origin, "input"))
    for draft in drafts:
        calls.took(name, draft.request)
    told: dict[Any, _Call] = place.file.memory.setdefault("langfuse-calls", {})
    if len(drafts) == 1:
        trace = fields.name_in(record, ("trace_id", "traceId"))
        ended = fields.time_of(record, ("end_time", "endTime"))
        call = _Call(record.get("name"), origin.time, ended, drafts[0].request)
        before = told.get(trace)
        if before is not None and (outer := _outer(before, call)) is not None:
            place.file.memory.setdefault("langfuse-outer", []).append(outer)
        told[trace] = call
    return drafts


class _Call(NamedTuple):
    name: Any
    start: Moment | None
    end: Moment | None
    request: Request


def _outer(one: _Call, other: _Call) -> Request | None:
    """Of two calls of a trace that tell of one prompt under two names, the framework's, which begins first."""
    if one.name == other.name or one.start is None or other.start is None:
        return None
    if _texts(one.request) != _texts(other.request):
        return None
    around, inner = sorted((one, other), key=lambda call: call.start.value if call.start else 0)
    if around.start is None or inner.start is None:
        return None
    encloses = around.end is not None and inner.start.value <= around.end.value
    return around.request if encloses or inner.start.value - around.start.value <= 1 else None


def _texts(request: Request) -> list[tuple[Any, Any]]:
    return [(one.get("role"), one.get("content") or None) for one in request.messages or ()]


def _finish(file: FileState, requests: list[Request]) -> Iterable[Lost]:
    """A call that two observations tell of, a framework's and its client's, is one request."""
    calls = file.memory.get("langfuse")
    for request in calls.repeats(requests) if calls is not None else ():
        file.note(LOGGED_TWICE)
        yield Lost(request.source, None, request)
    for request in file.memory.get("langfuse-outer", ()):
        file.note(LOGGED_TWICE)
        yield Lost(request.source, None, request)


def _body(held: Any) -> dict[str, Any]:
    """The request as a body: a list of messages, an object with them, one message, or a text."""
    if isinstance(held, list):
        messages, tools = split_tools(held)
        return {"messages": messages, "tools": tools} if tools else {"messages": messages}
    if isinstance(held, str):
        refuse_cut_json(held, "input")
        return {"prompt": held}
    if isinstance(held, dict):
        return {"messages": [held]} if "role" in held and "content" in held else dict(held)
    raise RecordError("no_request", "input", found=describe(held), wanted="messages or text")


def _answer(output: Any) -> Any:
    if isinstance(output, dict) and "role" not in output and isinstance(output.get("content"), str):
        return {"role": "assistant"} | output
    return output


FORMAT = Format(
    name="langfuse",
    about="Langfuse observations: blob export or API, JSON or JSON lines",
    recognised_by="type and input, with trace_id, start_time or usage_details",
    example='{"id": "o1", "trace_id": "t1", "type": "GENERATION", "start_time": "2026-01-02 03:04:05.678", '
    '"model": "m", "input": [{"role": "user", "content": "Hi"}]}',
    recognises=_recognises,
    read=_read,
    finish=_finish,
)
