"""OpenTelemetry spans in the forms in which they are stored, as one plain shape; blind to what attributes say.

OTLP JSON (nested under resourceSpans, values wrapped by type), the Python console exporter's spans, and rows
with dotted column names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kvtune.tokenization.clock import Moment, moment
from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.format import Record
from kvtune.tokenization.rejects import RecordError

_MOST_NESTED = 64


class Event(NamedTuple):
    """An event of a span: its name and attributes (a log body's fields among them)."""

    name: str
    attributes: dict[str, Any]


class Span(NamedTuple):
    """A span: ids, start, attributes of the span over those of its resource, events in order.

    `own` is the number of its own attributes, `dropped` how many a limit took away as far as the span says, `failed`
    whether it ended with an error.
    """

    id: str | None
    trace_id: str | None
    parent_id: str | None
    start: Moment | None
    attributes: dict[str, Any]
    events: list[Event]
    own: int = 0
    dropped: int = 0
    failed: bool = False


def is_spans(record: Record) -> bool:
    """Whether a record is a span or a batch of them."""
    if "resourceSpans" in record or "resource_spans" in record:
        return True
    if "attributes" in record and not _SPAN_MARKS.isdisjoint(record):
        return True
    return any(
        name.startswith(("attributes.gen_ai", "attributes.llm", "attributes.openinference"))
        for name in record
    )


_SPAN_MARKS = frozenset(
    {"context", "spanId", "span_id", "startTimeUnixNano", "start_time_unix_nano", "span_kind"}
)


def single_spans(record: Record) -> list[Record]:
    """The spans of an OTLP batch, each in a batch of its own, so that one that is bad costs no other; [] for others."""
    batches = _objects(record.get("resourceSpans", record.get("resource_spans")))
    singles: list[Record] = []
    for batch in batches:
        scopes = batch.get("scopeSpans", batch.get("scope_spans", batch.get("instrumentationLibrarySpans")))
        around = {"resource": batch["resource"]} if "resource" in batch else {}
        for scope in _objects(scopes):
            kept = {"scope": scope["scope"]} if "scope" in scope else {}
            singles += (
                {"resourceSpans": [around | {"scopeSpans": [kept | {"spans": [span]}]}]}
                for span in _objects(scope.get("spans"))
            )
    return singles


def spans_of(record: Record) -> Iterator[Span]:
    """All spans of a record, in the order in which they stand there."""
    batches = record.get("resourceSpans", record.get("resource_spans"))
    if batches is None:
        yield _span(record, {})
        return
    for batch in _objects(batches):
        resource = attributes_of(fields.dig(batch, "resource.attributes"))
        scopes = batch.get("scopeSpans", batch.get("scope_spans", batch.get("instrumentationLibrarySpans")))
        for scope in _objects(scopes):
            for span in _objects(scope.get("spans")):
                yield _span(span, resource)


def _span(span: Record, resource: dict[str, Any]) -> Span:
    own = attributes_of(span.get("attributes"))
    if not own:
        dotted = [(name, value) for name, value in span.items() if name.startswith("attributes.")]
        own = {name.removeprefix("attributes."): value for name, value in dotted}
    context = span.get("context")
    context = context if isinstance(context, dict) else {}
    name, start = fields.first(span, ("startTimeUnixNano", "start_time_unix_nano"))
    time = moment(start, name, "ns") if name else fields.time_of(span, ("start_time", "startTime"))
    return Span(
        fields.name_in(span, ("spanId", "span_id", "context.span_id"))
        or fields.name_in(context, ("span_id",)),
        fields.name_in(span, ("traceId", "trace_id", "context.trace_id"))
        or fields.name_in(context, ("trace_id",)),
        fields.name_in(span, ("parentSpanId", "parent_span_id", "parent_id", "parentId")),
        time,
        resource | own,
        [_event(one) for one in _objects(span.get("events"))],
        len(own),
        _count(fields.first(span, ("droppedAttributesCount", "dropped_attributes_count"))[1]),
        _failed(span),
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) else int(value) if str(value).isdecimal() else 0


def _failed(span: Record) -> bool:
    """Whether a span ended with an error: OTLP's code 2, or the status as Python and data frames write it."""
    status = span.get("status")
    code = (
        status.get("code", status.get("status_code")) if isinstance(status, dict) else span.get("status_code")
    )
    return code == 2 or (
        isinstance(code, str) and code.rpartition(".")[2].removeprefix("STATUS_CODE_") == "ERROR"
    )


def _event(event: Record) -> Event:
    attributes = attributes_of(event.get("attributes"))
    body = plain_value(event.get("body"))
    name = fields.name_in(event, ("name",)) or fields.text_of(attributes.get("event.name")) or ""
    return Event(name, attributes | body if isinstance(body, dict) else attributes)


def attributes_of(held: Any) -> dict[str, Any]:
    """Attributes as a plain dict, from OTLP's key-value list or from an object."""
    if isinstance(held, dict):
        return held
    pairs = [one for one in _objects(held) if isinstance(one.get("key"), str)]
    return {one["key"]: plain_value(one.get("value")) for one in pairs}


def plain_value(value: Any, depth: int = 0) -> Any:
    """OTLP's AnyValue as a plain value; other values as they are."""
    if not isinstance(value, dict) or depth > _MOST_NESTED:
        return value
    for kind in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
        if kind in value:
            return value[kind]
    if "intValue" in value:
        number = value["intValue"]
        return int(number) if isinstance(number, str) and number.lstrip("-").isdecimal() else number
    if isinstance(value.get("arrayValue"), dict):
        return [plain_value(one, depth + 1) for one in value["arrayValue"].get("values") or []]
    if isinstance(value.get("kvlistValue"), dict):
        pairs = _objects(value["kvlistValue"].get("values"))
        return {
            one["key"]: plain_value(one.get("value"), depth + 1)
            for one in pairs
            if isinstance(one.get("key"), str)
        }
    return value


def _objects(held: Any) -> list[dict[str, Any]]:
    return [one for one in held if isinstance(one, dict)] if isinstance(held, list) else []


def indexed(attributes: dict[str, Any], prefix: str) -> list[dict[str, Any]]:
    """What flattened names hold: `PREFIX.0.a`, `PREFIX.1.b.c` become [{"a": …}, {"b.c": …}], in index order."""
    items = _numbered(attributes, prefix)
    return [items[number] for number in sorted(items)]


def require_all(span: Span, *prefixes: str) -> None:
    """Raises `RecordError` where an attribute limit took a beginning or a middle of numbered names.

    The Python SDK keeps the newest attributes of a span (128 by default) and drops the oldest, without a mark.
    """
    for prefix in prefixes:
        numbers = _numbered(span.attributes, prefix)
        if numbers and max(numbers) + 1 != len(numbers):
            missing = min(set(range(len(numbers) + 1)) - set(numbers))
            raise lost_attributes(f"{prefix}.{missing}", "an attribute limit dropped it")


def lost_attributes(field: str, found: str) -> RecordError:
    """The error of a span that lost attributes to a limit."""
    wanted = (
        f"all attributes (OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT above {DEFAULT_LIMIT} in the instrumented program)"
    )
    return RecordError("truncated_prompt", field, found=found, wanted=wanted)


def lost_oldest(span: Span) -> bool:
    """Whether a limit dropped the oldest attributes: the span says so, or has exactly as many as the default keeps
    and none of those that instrumentations write first."""
    return span.dropped > 0 or (span.own == DEFAULT_LIMIT and _FIRST_WRITTEN.isdisjoint(span.attributes))


DEFAULT_LIMIT = 128
_FIRST_WRITTEN = frozenset(
    {"gen_ai.operation.name", "gen_ai.system", "llm.request.type", "llm.system", "input.value"}
)


def _numbered(attributes: dict[str, Any], prefix: str) -> dict[int, dict[str, Any]]:
    items: dict[int, dict[str, Any]] = {}
    start = prefix + "."
    for name, value in attributes.items():
        if name.startswith(start):
            number, _, rest = name[len(start) :].partition(".")
            if number.isdecimal() and len(number) < 10:
                items.setdefault(int(number), {})[rest] = value
    return items
