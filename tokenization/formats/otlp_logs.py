"""OpenTelemetry GenAI events as OTLP log records: a details event with the whole call, or an event a message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kvtune.tokenization.clock import moment
from kvtune.tokenization.formats import fields, otel
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.spans import attributes_of, plain_value

_DETAILS = "gen_ai.input.messages"
_MESSAGE = ".message"
_BATCHES = ("resourceLogs", "resource_logs")


def _read(record: Record, place: Place) -> Iterable[Draft]:
    drafts: list[Draft] = []
    for number, span in enumerate(_spans(record, place)):
        where = f"{place.where}/{number}" if number else place.where
        drafts += otel.FORMAT.read(span, Place(where, place.file)) if otel.FORMAT.read else ()
    return drafts


def _spans(record: Record, place: Place) -> Iterator[Record]:
    """Each call of a batch as a span: a details event by itself, the messages of one span together."""
    calls: dict[Any, Record] = {}
    for number, (log, resource) in enumerate(_logs(record)):
        attributes = resource | attributes_of(log.get("attributes"))
        body = plain_value(log.get("body"))
        name = (
            fields.name_in(log, ("eventName", "event_name"))
            or fields.text_of(attributes.get("event.name"))
            or ""
        )
        held = attributes | body if isinstance(body, dict) else attributes
        key: Any = log.get("spanId") or number
        if _DETAILS in held:
            calls[number, "details"] = _span(log, held, [])
        elif name.startswith("gen_ai.") and name.endswith(_MESSAGE):
            call = calls.setdefault(key, _span(log, attributes, []))
            call["events"].append({"name": name, "attributes": held})
        elif name != "gen_ai.choice":
            place.file.note("Log records that are no calls of a model: left out")
    yield from calls.values()


def _span(log: Record, attributes: Record, events: list[Record]) -> Record:
    name, time = fields.first(log, ("timeUnixNano", "time_unix_nano", "observedTimeUnixNano"))
    start = moment(time, name, "ns") if name else None
    return {
        "spanId": log.get("spanId"),
        "traceId": log.get("traceId"),
        "startTimeUnixNano": start.value if start else None,
        "attributes": {"gen_ai.operation.name": "chat"} | attributes,
        "events": events,
    }


def _logs(record: Record) -> Iterator[tuple[Record, Record]]:
    batches = next((record[name] for name in _BATCHES if name in record), None)
    for batch in _objects(batches):
        resource = attributes_of(fields.dig(batch, "resource.attributes"))
        for scope in _objects(batch.get("scopeLogs", batch.get("scope_logs"))):
            for log in _objects(scope.get("logRecords", scope.get("log_records"))):
                yield log, resource


def _objects(held: Any) -> list[Record]:
    return [one for one in held if isinstance(one, dict)] if isinstance(held, list) else []


FORMAT = Format(
    name="otlp-logs",
    about="OpenTelemetry GenAI events as OTLP log records",
    recognised_by="resourceLogs",
    example='{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"timeUnixNano": "1796080956746691328", "eventName": '
    '"gen_ai.client.inference.operation.details", "attributes": [{"key": "gen_ai.input.messages", "value": '
    '{"stringValue": "[{\\"role\\": \\"user\\", \\"parts\\": [{\\"type\\": \\"text\\", \\"content\\": '
    '\\"Hi\\"}]}]"}}]}]}]}]}',
    recognises=lambda record: any(name in record for name in _BATCHES),
    read=_read,
)
