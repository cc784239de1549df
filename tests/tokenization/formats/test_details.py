"""What single formats have of their own: redaction, gateways' caches, ids of history on a server, images."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from kvtune.tokenization.reading import ReadResult, read_trace
from kvtune.tokenization.rejects import Rejection

HELLO = [{"role": "user", "content": "hello"}]
GOOD = {"messages": HELLO, "model": "good"}


def read(*records: Any) -> tuple[ReadResult, list[Rejection]]:
    found: list[Rejection] = []
    text = "".join(json.dumps(record) + "\n" for record in (*records, GOOD))
    return read_trace(["-"], stdin=io.BytesIO(text.encode()), on_reject=found.append), found


def first(*records: Any) -> Any:
    result, found = read(*records)
    assert not found
    assert len(result.requests) > 1
    return result.requests[0]


LITELLM = {"id": "r", "call_type": "acompletion", "startTime": 1.5, "model": "m"}


def test_litellm_redacted_content_is_no_request() -> None:
    redacted = [{"role": "user", "content": "redacted-by-litellm"}]
    _, found = read(LITELLM | {"messages": redacted}, LITELLM | {"messages": {}}, LITELLM | {"messages": []})
    assert [one.reason for one in found] == ["no_request"] * 3
    assert "redacted content" in str(found[0])


def test_litellm_answers_from_the_gateways_cache_never_reached_an_engine() -> None:
    result, found = read(
        LITELLM | {"messages": HELLO, "cache_hit": True}, LITELLM | {"messages": HELLO, "cache_hit": False}
    )
    assert (len(result.requests), found) == (2, [])
    assert any("gateway" in note and "1 records" in note for note in result.stats.notes)


def test_litellm_spend_log_with_the_request_in_a_column() -> None:
    row = {
        "request_id": "r",
        "call_type": "acompletion",
        "startTime": "2026-01-02T03:04:05",
        "messages": "{}",
        "proxy_server_request": json.dumps(
            {"model": "m", "messages": HELLO, "tools": [{"type": "function"}]}
        ),
    }
    request = first(row | {"messages": None})
    assert (request.id, request.messages, request.tools) == ("r", HELLO, [{"type": "function"}])
    assert request.arrival == 1767323045.0


def test_litellm_text_completion() -> None:
    request = first(LITELLM | {"call_type": "atext_completion", "messages": "Once upon a time"})
    assert (request.text, request.endpoint) == ("Once upon a time", "completions")


LANGFUSE = {
    "id": "o",
    "traceId": "t",
    "type": "GENERATION",
    "startTime": "2026-01-02T03:04:05Z",
    "model": "m",
}


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        (HELLO, HELLO),
        (json.dumps(HELLO), HELLO),
        ({"messages": HELLO}, HELLO),
        (HELLO[0], HELLO),
        ("plain text", "plain text"),
    ],
)
def test_langfuse_inputs(held: Any, wanted: Any) -> None:
    request = first(LANGFUSE | {"input": held})
    assert (request.messages or request.text) == wanted
    assert request.session == "t"


def test_langfuse_without_input_is_no_request() -> None:
    _, found = read(LANGFUSE | {"input": None})
    assert [(one.reason, one.field) for one in found] == [("no_request", "input")]


def test_otel_span_without_content_says_how_to_have_it() -> None:
    span = {
        "context": {"span_id": "1"},
        "attributes": {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"},
    }
    _, found = read(span)
    assert [one.reason for one in found] == ["no_request"]
    assert "CAPTURE_MESSAGE_CONTENT" in str(found[0])


@pytest.mark.parametrize("operation", ["execute_tool", "embeddings", "invoke_agent"])
def test_otel_spans_that_call_no_model_are_passed_over(operation: str) -> None:
    result, found = read({"context": {}, "attributes": {"gen_ai.operation.name": operation}})
    assert (len(result.requests), found) == (1, [])


def test_otel_images() -> None:
    parts = [
        {"type": "text", "content": "see"},
        {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "iVBORw0KGgo="},
        {"type": "uri", "modality": "image", "uri": "https://pictures.example/1.png"},
    ]
    request = first(
        {"context": {}, "attributes": {"gen_ai.input.messages": [{"role": "user", "parts": parts}]}}
    )
    assert request.messages[0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        {"type": "image_url", "image_url": {"url": "https://pictures.example/1.png"}},
    ]


def test_openinference_by_its_input_value() -> None:
    attributes = {
        "openinference.span.kind": "LLM",
        "input.value": json.dumps({"messages": HELLO, "model": "m"}),
    }
    assert first({"context": {}, "attributes": attributes}).messages == HELLO


def test_openinference_chains_are_passed_over() -> None:
    attributes = {"openinference.span.kind": "CHAIN", "input.value": "text"}
    assert len(read({"context": {}, "attributes": attributes})[0].requests) == 1


ANTHROPIC = {"model": "m", "max_tokens": 9, "system": "Rules."}


def test_anthropic_tool_results_come_before_the_users_words() -> None:
    blocks = [
        {"type": "tool_result", "tool_use_id": "c1", "content": "one"},
        {
            "type": "tool_result",
            "tool_use_id": "c2",
            "content": [{"type": "text", "text": "two"}],
            "is_error": True,
        },
        {"type": "text", "text": "go on"},
    ]
    calls = [{"type": "tool_use", "id": name, "name": "f", "input": {}} for name in ("c1", "c2")]
    said = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "wait"},
        *calls,
    ]
    messages = [*HELLO, {"role": "assistant", "content": said}, {"role": "user", "content": blocks}]
    request = first(ANTHROPIC | {"messages": messages})
    assert [message["role"] for message in request.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
    ]
    assert [message["content"] for message in request.messages] == [
        "Rules.",
        "hello",
        "wait",
        "one",
        "two",
        "go on",
    ]
    assert request.messages[2]["reasoning"] == "hm"
    assert [call["id"] for call in request.messages[2]["tool_calls"]] == ["c1", "c2"]
    assert [message["tool_call_id"] for message in request.messages[3:5]] == ["c1", "c2"]
    assert request.endpoint == "messages"


def test_anthropic_images_and_cache_marks() -> None:
    blocks = [
        {"type": "text", "text": "see", "cache_control": {"type": "ephemeral"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
        {"type": "image", "source": {"type": "url", "url": "https://pictures.example/1.png"}},
    ]
    request = first(ANTHROPIC | {"messages": [{"role": "user", "content": blocks}]})
    assert request.messages[1]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        {"type": "image_url", "image_url": {"url": "https://pictures.example/1.png"}},
    ]


def test_anthropic_tools_without_a_schema_reach_no_template() -> None:
    tools = [
        {"type": "web_search_20250305", "name": "web_search"},
        {"name": "f", "input_schema": {"type": "object"}},
    ]
    request = first(ANTHROPIC | {"messages": HELLO, "tools": tools})
    assert [tool["function"]["name"] for tool in request.tools] == ["f"]


def test_anthropic_context_editing_is_reported() -> None:
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    result, _ = read(ANTHROPIC | {"messages": HELLO, "context_management": edits})
    assert any("context_management" in note for note in result.stats.notes)


def test_responses_turns() -> None:
    items = [
        {"role": "user", "content": "hello"},
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "wait"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {
            "role": "user",
            "content": [{"type": "input_image", "image_url": "data:,x"}, {"type": "input_text", "text": "?"}],
        },
    ]
    request = first(
        {"model": "m", "instructions": "Rules.", "input": items, "tools": [{"type": "web_search"}]}
    )
    assert [message["role"] for message in request.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
    ]
    assert request.messages[2]["content"] == "wait"
    assert request.messages[2]["reasoning"] == "hm"
    assert [call["id"] for call in request.messages[2]["tool_calls"]] == ["c1", "c2"]
    assert [message["content"] for message in request.messages[3:5]] == ["one", "two"]
    assert request.messages[5]["content"][0] == {"type": "image_url", "image_url": {"url": "data:,x"}}
    assert request.tools is None


def test_the_url_of_a_batch_line_says_what_its_body_is() -> None:
    line = {"custom_id": "a", "method": "POST", "body": {"model": "m", "messages": HELLO}}
    assert first(line | {"url": "/v1/messages"}).endpoint == "messages"
    assert first(line | {"url": "/v1/chat/completions"}).endpoint == "chat"
    body = {"model": "m", "input": "hello"}
    assert first(line | {"url": "/v1/responses", "body": body}).messages == HELLO


def test_completions_with_several_prompts_are_several_requests() -> None:
    result, _ = read({"id": "p", "prompt": ["a", "b"]}, {"id": "q", "prompt": [[1], [2, 3]]})
    assert [(one.id, one.text or one.token_ids) for one in result.requests[:4]] == [
        ("p/0", "a"),
        ("p/1", "b"),
        ("q/0", [1]),
        ("q/1", [2, 3]),
    ]


def test_aiperf_turns_without_a_time_follow_by_their_delay() -> None:
    rows = [
        {"session_id": "s", "timestamp": 1000, "text_input": "a"},
        {"session_id": "s", "delay": 500, "text_input": "b"},
        {"session_id": "t", "timestamp": 1200, "text_input": "c"},
        {"session_id": "s", "delay": 250, "payload": {"model": "m", "prompt": "d"}},
    ]
    result, _ = read(*rows)
    assert [(one.text, one.arrival) for one in result.requests[:4]] == [
        ("a", 1.0),
        ("c", 1.2),
        ("b", 1.5),
        ("d", 1.75),
    ]


def test_sharegpt_speakers() -> None:
    turns = [
        {"from": "system", "value": "s"},
        {"from": "Human", "value": "a"},
        {"from": "chatgpt", "value": "b"},
    ]
    assert [one["role"] for one in first({"id": "c", "conversations": turns}).messages] == ["system", "user"]
    _, found = read({"id": "c", "conversations": [{"from": "oracle", "value": "a"}]})
    assert [(one.reason, one.field) for one in found] == [("unknown_role", "conversations[0].from")]


def test_sharegpt_a_last_question_was_asked_too() -> None:
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}]
    result, _ = read({"id": "c", "conversations": turns})
    assert [(one.id, one.output is None) for one in result.requests[:2]] == [("c/0", False), ("c/1", True)]


def test_swe_agent_without_queries_is_read_from_its_history() -> None:
    history = [*HELLO, {"role": "assistant", "content": "a", "agent": "main"}]
    request = first({"trajectory": [{"action": "x"}], "history": history})
    assert request.messages == HELLO
    _, found = read({"trajectory": [{"action": "x"}]})
    assert [one.reason for one in found] == ["no_request"]


def test_one_turn_logged_streaming_and_not_counts_once() -> None:
    rows = [
        {"messages": HELLO, "stream": True, "session_id": "s"},
        {"messages": HELLO, "stream": False, "session_id": "s"},
        {"messages": HELLO, "stream": False, "session_id": "s"},
        {"messages": HELLO, "stream": False, "session_id": "t"},
        {"messages": HELLO, "session_id": "s"},
    ]
    result, _ = read(*rows)
    assert len(result.requests) == 1 + 4
    assert any("streaming" in note and "(1 records)" in note for note in result.stats.notes)
    assert sum(result.stats.formats.values()) == len(result.requests)


def test_prompts_that_the_engine_cuts_are_reported() -> None:
    result, _ = read({"model": "m", "prompt": "a b c", "truncate_prompt_tokens": 2})
    assert any("truncate_prompt_tokens" in note and "(1 records)" in note for note in result.stats.notes)
