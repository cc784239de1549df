"""OpenTelemetry GenAI spans: messages in attributes (semantic conventions 1.37 and later), in events, or numbered.

Spans about anything else are passed over; a GenAI span without its messages is rejected, for it was a request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import Origin, chat_draft, draft
from kvtune.tokenization.formats.format import Draft, FileState, Format, Lost, Place, Record
from kvtune.tokenization.formats.genai_messages import (
    messages_from_attributes,
    messages_from_events,
    messages_from_numbers,
    tools_from_attributes,
)
from kvtune.tokenization.formats.messages import checked_messages
from kvtune.tokenization.formats.nested import as_json, refuse_cut_json
from kvtune.tokenization.formats.nested_calls import NestedCalls
from kvtune.tokenization.formats.openinference import is_openinference, read_span
from kvtune.tokenization.formats.outcome import FAILED, LOGGED_TWICE, NO_ENGINE_FIELDS, OTHER_OPERATION
from kvtune.tokenization.formats.spans import (
    Span,
    indexed,
    is_spans,
    lost_attributes,
    lost_oldest,
    require_all,
    spans_of,
)
from kvtune.tokenization.formats.usage import usage_of_attributes
from kvtune.tokenization.formats.vercel_ai import is_vercel_ai
from kvtune.tokenization.formats.vercel_ai import read_span as read_ai_span
from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.request import Request

_PROMPTS = frozenset({"messages", "prompt", "input"})
_NO_REQUEST = ("embeddings", "execute_tool", "create_agent", "invoke_agent", "invoke_workflow")


def _read(record: Record, place: Place) -> Iterable[Draft]:
    drafts: list[Draft] = []
    for number, span in enumerate(spans_of(record)):
        name = place.where if number == 0 else f"{place.where}/{number}"
        calls = place.file.memory.setdefault("otel", NestedCalls())
        calls.saw(span.id, span.parent_id)
        if is_openinference(span):
            found = _served(span, place) and read_span(span, _origin(span, place, name))
        elif is_vercel_ai(span):
            found = _served(span, place) and read_ai_span(span, _origin(span, place, name))
        elif any(key.startswith("gen_ai.") for key in span.attributes):
            found = _served(span, place) and _read_genai(span, _origin(span, place, name), place)
        else:
            place.file.note("Spans that are no calls of a model: left out")
            continue
        if found and "request_data" not in span.attributes:
            place.file.note(NO_ENGINE_FIELDS)
        for one in found or ():
            calls.took(span.id, one.request)
            drafts.append(one)
    return drafts


def _served(span: Span, place: Place) -> bool:
    """Whether the call ended well; one that did not is passed over."""
    if span.failed:
        place.file.note(FAILED)
    return not span.failed


def _read_genai(span: Span, origin: Origin, place: Place) -> list[Draft]:
    if span.attributes.get("gen_ai.operation.name") in _NO_REQUEST:
        if span.attributes["gen_ai.operation.name"] == "embeddings":
            place.file.note(OTHER_OPERATION)
        return []
    sent = as_json(span.attributes.get("request_data"))
    if isinstance(sent, dict) and not _PROMPTS.isdisjoint(sent):
        return list(read_body(sent, origin, "request_data"))  # the whole body, as Logfire keeps it
    messages = messages_from_attributes(span) or messages_from_events(span) or messages_from_numbers(span)
    if isinstance(messages, str):
        refuse_cut_json(messages, "gen_ai.prompt")
        return [draft(origin, text=messages, endpoint="completions")]
    if not messages:
        refuse_cut_json(str(span.attributes.get("gen_ai.input.messages", "")), "gen_ai.input.messages")
        if "gen_ai.request.id" in span.attributes and "gen_ai.operation.name" not in span.attributes:
            raise RecordError(
                "no_request",
                None,
                found="vLLM's own spans",
                wanted="prompts, which those spans do not hold",
                hint="log the requests themselves (docs/getting-a-trace.md#i-have-only-the-log-of-vllm)",
            )
        raise RecordError(
            "no_request",
            "gen_ai.input.messages",
            found="a span without content",
            wanted="messages (OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT)",
        )
    refuse_cut_json(str(span.attributes.get("gen_ai.tool.definitions", "")), "gen_ai.tool.definitions")
    require_all(span, "gen_ai.prompt", "llm.request.functions")
    tools = tools_from_attributes(span.attributes)
    if tools is None and lost_oldest(span):
        raise lost_attributes("gen_ai.tool.definitions", "attributes that a limit dropped")
    return [chat_draft(origin, checked_messages(messages, "gen_ai.input.messages"), tools)]


def _finish(file: FileState, requests: list[Request]) -> Iterable[Lost]:
    """A call that two spans tell of is one request."""
    calls = file.memory.get("otel")
    for request in calls.repeats(requests) if calls is not None else ():
        file.note(LOGGED_TWICE)
        yield Lost(request.source, None, request)


def _origin(span: Span, place: Place, name: str) -> Origin:
    attributes = span.attributes
    address = fields.name_in(attributes, ("server.address", "net.peer.name"))
    port = fields.name_in(attributes, ("server.port", "net.peer.port"))
    server = f"{address}:{port}" if address and port else address
    if place.file.by_field is not None:
        server = fields.text_of(fields.field_value(attributes, place.file.by_field))
    model = fields.name_in(attributes, ("gen_ai.request.model", "llm.model_name", "gen_ai.response.model"))
    answers = indexed(attributes, "gen_ai.completion")
    return Origin(
        id=span.id or name,
        source=place.where,
        time=span.start,
        session=fields.name_in(attributes, ("gen_ai.conversation.id", "session.id")) or span.trace_id,
        server=server,
        identity=fields.identity_of({"model": model}, attributes, place),
        output=_answer(span, answers),
        output_tokens=_output_tokens(attributes),
        usage=usage_of_attributes(attributes),
    )


def _answer(span: Span, numbered: list[dict[str, Any]]) -> Any:
    messages = messages_from_attributes(span, "gen_ai.output.messages", system=False)
    if isinstance(messages, list) and messages and messages[0]["role"] == "assistant":
        return messages[0]
    content = numbered[0].get("content") if numbered else None
    return {"role": "assistant", "content": content} if isinstance(content, str) else None


def _output_tokens(attributes: dict[str, Any]) -> int | None:
    names = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
    return fields.whole_number(attributes, names)


FORMAT = Format(
    name="otel",
    about="OpenTelemetry GenAI and OpenInference spans: OTLP JSON, JSON lines of spans, old and new attributes",
    recognised_by="resourceSpans, or a span with attributes",
    example='{"name": "chat m", "context": {"trace_id": "t1", "span_id": "a1"}, "start_time": "2026-01-02T03:04:05Z", '
    '"attributes": {"gen_ai.request.model": "m", "gen_ai.input.messages": '
    '"[{\\"role\\": \\"user\\", \\"parts\\": [{\\"type\\": \\"text\\", \\"content\\": \\"Hi\\"}]}]"}}',
    recognises=is_spans,
    read=_read,
    finish=_finish,
)
