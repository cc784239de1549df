"""MLflow traces: JSON of traces, and data frames of `search_traces` as CSV or JSON lines; chat model spans only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvtune.tokenization.clock import Moment, moment
from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.nested import as_json
from kvtune.tokenization.formats.outcome import FAILED
from kvtune.tokenization.rejects import RecordError, describe

_CALLS = ("CHAT_MODEL", "LLM")
_TIMES = ("start_time_unix_nano", "start_time_ns", "start_time")


def _recognises(record: Record) -> bool:
    return _spans(record) is not None


def _trace(record: Record) -> Record:
    """The trace itself, which a data frame holds in a column, or the data frame's row."""
    held = as_json(record.get("trace"))
    return held if isinstance(held, dict) else record


def _spans(record: Record) -> list[Any] | None:
    trace = _trace(record)
    data = trace.get("data")
    spans = data.get("spans") if isinstance(data, dict) else None
    if isinstance(spans, list) and "info" in trace:
        return spans
    spans = as_json(record.get("spans"))
    is_row = "request_time" in record or "trace_metadata" in record or "timestamp_ms" in record
    return spans if isinstance(spans, list) and is_row else None


def _read(record: Record, place: Place) -> Iterable[Draft]:
    drafts: list[Draft] = []
    info = as_json(_trace(record).get("info"))
    info = info if isinstance(info, dict) else record
    for number, span in enumerate(_spans(record) or ()):
        if not isinstance(span, dict):
            raise RecordError("wrong_type", f"spans[{number}]", found=describe(span), wanted="a span")
        attributes = span.get("attributes")
        attributes = attributes if isinstance(attributes, dict) else {}
        if _value(attributes, "mlflow.spanType") not in _CALLS:
            place.file.note("MLflow spans that are no model calls: left out")
            continue
        if _failed(span):
            place.file.note(FAILED)
            continue
        drafts += _call(span, attributes, info, place)
    return drafts


def _call(span: Record, attributes: Record, info: Record, place: Place) -> Iterable[Draft]:
    body = _value(attributes, "mlflow.spanInputs")
    if isinstance(body, list):
        body = {"messages": body}
    if not isinstance(body, dict):
        raise RecordError("no_request", "mlflow.spanInputs", found=describe(body), wanted="a request's body")
    body = dict(body)
    extra = body.pop("extra_body", None)
    body |= extra if isinstance(extra, dict) else {}
    tools = _value(attributes, "mlflow.chat.tools")
    if isinstance(tools, list) and body.get("tools") is None:
        body["tools"] = tools
    metadata = info.get("trace_metadata")
    session = fields.name_in(metadata, ("mlflow.trace.session",)) if isinstance(metadata, dict) else None
    usage = _value(attributes, "mlflow.chat.tokenUsage")
    origin = origin_of(
        {"usage": usage} if isinstance(usage, dict) else {},
        place,
        body,
        _value(attributes, "mlflow.spanOutputs"),
        id=fields.name_in(span, ("span_id",)) or place.where,
        session=session or fields.name_in(info, ("trace_id", "request_id")),
        time=_time(span),
    )
    return read_body(body, origin, "mlflow.spanInputs")


def _value(attributes: Record, name: str) -> Any:
    """An attribute, which MLflow writes as JSON even where it is a plain string."""
    held = as_json(attributes.get(name))
    if isinstance(held, str) and len(held) > 1 and held[0] == held[-1] == '"':
        return held[1:-1]
    return held


def _failed(span: Record) -> bool:
    status = span.get("status")
    code = status.get("code") if isinstance(status, dict) else span.get("status_code")
    return str(code).endswith("ERROR")


def _time(span: Record) -> Moment | None:
    name, value = fields.first(span, _TIMES)
    return moment(value, name, "ns" if name.endswith(("nano", "_ns")) else None) if name else None


FORMAT = Format(
    name="mlflow",
    about="MLflow traces, JSON or data frames of search_traces",
    recognised_by="info and data.spans, or a column spans beside request_time",
    example='{"info": {"trace_id": "t1"}, "data": {"spans": [{"span_id": "s1", "start_time_unix_nano": '
    '1796082793524417277, "attributes": {"mlflow.spanType": "\\"CHAT_MODEL\\"", "mlflow.spanInputs": '
    '"{\\"model\\": \\"m\\", \\"messages\\": [{\\"role\\": \\"user\\", \\"content\\": \\"Hi\\"}]}"}}]}}',
    recognises=_recognises,
    read=_read,
)
