"""Exchanges to lines: what is written, what has no place in a trace, and that any bytes give one or the other."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtune.tokenization.capture.conversations import Conversations
from kvtune.tokenization.capture.exchange import Exchange, MemoryBudget
from kvtune.tokenization.capture.record import Unrecordable, recordable, to_line

BUDGET = MemoryBudget(1 << 30)


def exchange(
    body: bytes, answer: bytes = b"", path: str = "/v1/chat/completions", **more: object
) -> Exchange:
    made = Exchange(path, 1.23456789, **({"status": 200, "complete": True} | more))  # type: ignore[arg-type]
    made.keep(body, made.body, BUDGET)
    made.keep(answer, made.answer, BUDGET)
    return made


def line_of(made: Exchange) -> dict:
    line, _ = to_line(made, Conversations("p"))
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    return json.loads(line)


def test_the_line_field_by_field() -> None:
    body = b'{\n  "model": "m",\r\n  "messages": [{"role": "user", "content": "a  \\n b"}], "seed": 123456789012345678}'
    made = exchange(body, b'{"choices": [], "usage": {"prompt_tokens": 3}}', ttft_s=0.25, e2e_s=0.5)
    line, understood = to_line(made, Conversations("p"))
    assert understood
    assert line == (
        b'{"custom_id":"p-0/0","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":'
        b'[{"role":"user","content":"a  \\n b"}],"seed":123456789012345678},"timestamp":1.234568,'
        b'"conversation":"p-0","turn":0,"response":null,"usage":{"prompt_tokens":3},"ttft_s":0.25,"e2e_s":0.5,'
        b'"complete":true}\n'
    )


@pytest.mark.parametrize(
    ("method", "path", "wanted"),
    [
        ("POST", "/v1/chat/completions", True),
        ("POST", "/proxy/v1/completions", True),
        ("POST", "/v1/responses", True),
        ("POST", "/v1/messages", True),
        ("GET", "/v1/responses", False),
        ("POST", "/v1/embeddings", False),
        ("POST", "/v1/threads/t/messages", False),
        ("POST", "/v1/messages/count_tokens", False),
    ],
)
def test_which_endpoints_are_recorded(method: str, path: str, wanted: bool) -> None:
    assert recordable(method, path) is wanted


PROMPT = b'{"prompt": "x"}'


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (exchange(PROMPT, status=429), "answered with an error"),
        (exchange(PROMPT, request_encoded=True), "compressed request body"),
        (exchange(PROMPT, overflowed=True), "memory bound reached"),
        (exchange(b""), "body is no JSON object"),
        (exchange(b"[1]"), "body is no JSON object"),
        (exchange(b'{"prompt": "\xff"}'), "body is no JSON object"),
        (exchange(b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "body is no JSON object"),
        (exchange(b'{"model": "m"}'), "body holds no prompt"),
        (exchange(b'{"messages": "Hi"}'), "messages is no list of messages"),
        (exchange(b'{"messages": ["Hi"]}'), "messages is no list of messages"),
        (exchange(b'{"prompt": "x", "tools": {"type": "mcp"}}'), "tools is no list of objects"),
    ],
)
def test_what_has_no_place_in_a_trace(made: Exchange, reason: str) -> None:
    with pytest.raises(Unrecordable) as verdict:
        to_line(made, Conversations("p"))
    assert verdict.value.reason == reason


def test_an_answer_that_cannot_be_read_leaves_the_prompt() -> None:
    for made in (exchange(PROMPT, b"\x1f\x8b", answer_encoded=True), exchange(PROMPT, b"<html>")):
        line, understood = to_line(made, Conversations("p"))
        assert not understood and json.loads(line)["response"] is None
    half = exchange(PROMPT, b'{"choices": [{"index"', complete=False)
    assert to_line(half, Conversations("p"))[1]
    assert line_of(half)["complete"] is False


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
BODIES = st.dictionaries(
    st.sampled_from(["model", "messages", "prompt", "input", "tools", "x"]) | st.text(max_size=5),
    JSON,
    max_size=5,
)


@settings(max_examples=300)
@given(
    BODIES | JSON, st.sampled_from(["/v1/chat/completions", "/v1/responses"]), st.sampled_from([None, 0, 2])
)
def test_any_body_is_written_as_it_was_or_refused(body: object, path: str, indent: int | None) -> None:
    made = exchange(
        json.dumps(body, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass"), path=path
    )
    try:
        written = line_of(made)["body"]
    except Unrecordable:
        return
    assert written == {key: value for key, value in body.items() if key not in ("headers", "api_key")}


@settings(max_examples=300)
@given(st.binary(max_size=120), st.binary(max_size=120), st.booleans())
def test_any_bytes_give_a_line_or_a_verdict(body: bytes, answer: bytes, streamed: bool) -> None:
    try:
        line_of(exchange(body, answer, streamed=streamed))
    except Unrecordable as verdict:
        assert verdict.reason
