"""Answers put together by hand-written streams and by properties: chunking never changes what was said."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtune.tokenization.capture.answers.answer import Answer, NotUnderstoodError
from kvtune.tokenization.capture.answers.events import events
from kvtune.tokenization.capture.answers.read import ENDPOINTS, read_answer

CHAT = "/v1/chat/completions"


def sse(*values):
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)


def delta(**fields):
    return {"choices": [{"index": 0, "delta": fields}]}


def test_events_follow_the_standard_for_lines():
    stream = (
        b": note\nevent: a\ndata: 1\n\ndata:2\r\n\r\ndata: 3\ndata: 4\n\nid: 5\n\ndata: [DONE]\n\ndata: cut"
    )
    assert list(events(stream)) == [b"1", b"2", b"3\n4"]


def test_reasoning_and_tool_calls_of_several_indices():
    stream = sse(
        delta(role="assistant", content=""),
        delta(reasoning_content="Let me "),
        delta(reasoning_content="see."),
        delta(
            tool_calls=[
                {"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{"}}
            ]
        ),
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]),
        delta(
            tool_calls=[
                {"index": 0, "function": {"arguments": "{}"}},
                {"index": 1, "function": {"arguments": "}"}},
            ]
        ),
        {"choices": [], "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}},
    )
    answer = read_answer(CHAT, stream + b"data: [DONE]\n\n", streamed=True)
    assert answer.message == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Let me see.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }
    assert answer.usage == {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}


def test_the_first_choice_is_kept():
    stream = sse(
        {"choices": [{"index": 1, "delta": {"content": "no"}}, {"index": 0, "delta": {"content": "yes"}}]},
        {"choices": [{"index": 1, "delta": {"content": "!"}}]},
    )
    assert read_answer(CHAT, stream, streamed=True).message == {"role": "assistant", "content": "yes"}
    whole = {"choices": [{"index": 1, "message": {"role": "assistant", "content": "no"}}]}
    assert read_answer(CHAT, json.dumps(whole).encode(), streamed=False) == Answer()


def test_a_completion_streamed_and_whole():
    stream = sse({"choices": [{"index": 0, "text": "a"}]}, {"choices": [{"index": 0, "text": "b"}]})
    assert read_answer("/v1/completions", stream, streamed=True).message == {"text": "ab"}
    whole = b'{"choices": [{"index": 0, "text": "ab"}], "usage": {"completion_tokens": 2}}'
    assert read_answer("/v1/completions", whole, streamed=False) == Answer(
        {"text": "ab"}, {"completion_tokens": 2}
    )


def test_nothing_said():
    assert read_answer(CHAT, sse(delta(role="assistant")), streamed=True).message is None
    finished = sse(delta(role="assistant")) + b"data: [DONE]\n\n"
    assert read_answer(CHAT, finished, streamed=True).message == {"role": "assistant", "content": ""}
    assert read_answer(CHAT, sse({"error": {"message": "out of memory"}}), streamed=True) == Answer()


def test_responses():
    whole = {
        "id": "resp_1",
        "output": [
            {"type": "reasoning", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        ],
        "usage": {"input_tokens": 1, "output_tokens": 2},
    }
    wanted = Answer(
        {
            "role": "assistant",
            "content": "Hi",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"input_tokens": 1, "output_tokens": 2},
    )
    assert read_answer("/v1/responses", json.dumps(whole).encode(), streamed=False) == wanted
    delta_event = {"type": "response.output_text.delta", "delta": "Hi"}
    stream = sse({"type": "response.created", "response": whole | {"output": []}}, delta_event)
    assert read_answer("/v1/responses", stream, streamed=True) == Answer()
    stream += sse({"type": "response.completed", "response": whole})
    assert read_answer("/v1/responses", stream, streamed=True) == wanted


def test_messages():
    tool = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    stream = sse(
        {
            "type": "message_start",
            "message": {"content": [], "usage": {"input_tokens": 7, "output_tokens": 1}},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm."}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hel"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "lo"}},
        {"type": "content_block_start", "index": 2, "content_block": tool},
        {
            "type": "content_block_delta",
            "index": 2,
            "delta": {"type": "input_json_delta", "partial_json": '{"a"'},
        },
    )
    said = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hello"}]
    cut = read_answer("/v1/messages", stream, streamed=True)
    assert cut == Answer(
        {"type": "message", "role": "assistant", "content": said}, {"input_tokens": 7, "output_tokens": 1}
    )
    stream += sse(
        {
            "type": "content_block_delta",
            "index": 2,
            "delta": {"type": "input_json_delta", "partial_json": ": 1}"},
        },
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    )
    wanted = Answer(
        {"type": "message", "role": "assistant", "content": [*said, tool | {"input": {"a": 1}}]},
        {"input_tokens": 7, "output_tokens": 9},
    )
    assert read_answer("/v1/messages", stream, streamed=True) == wanted
    whole = json.dumps(
        {"type": "message", "content": wanted.message["content"], "usage": wanted.usage}
    ).encode()
    assert read_answer("/v1/messages", whole, streamed=False) == wanted


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b'{"choices": 3}',
        b'{"choices": [{"index": 0, "message": "x"}]}',
        b'{"usage": 1}',
        b"\xff",
        b'{"a":' * 100_000,
    ],
)
def test_what_is_no_answer_is_said_to_be_none(body):
    with pytest.raises(NotUnderstoodError):
        read_answer(CHAT, body, streamed=False)
    with pytest.raises(NotUnderstoodError):
        read_answer(CHAT, b"data: " + body + b"\n\n", streamed=True)


@given(st.lists(st.text(min_size=1, max_size=9), max_size=8), st.integers(0, 400))
def test_a_cut_stream_gives_the_pieces_that_had_ended(pieces, cut):
    stream = sse(delta(role="assistant"), *(delta(content=piece) for piece in pieces))
    said = read_answer(CHAT, stream[:cut], streamed=True).message
    ended = len(stream[:cut].split(b"\n\n")) - 2
    wanted = "".join(pieces[:ended]) if ended > 0 else ""
    assert said == ({"role": "assistant", "content": wanted} if wanted else None)


@settings(max_examples=300)
@given(st.binary(max_size=200), st.booleans(), st.sampled_from(sorted(ENDPOINTS)))
def test_any_bytes_are_an_answer_or_not_understood(body, streamed, path):
    with suppress(NotUnderstoodError):
        assert isinstance(read_answer(path, body, streamed=streamed), Answer)
