"""What servers counted is found under every name, and never where it means something else."""

from __future__ import annotations

import json

import msgspec
import pytest

from kvtune.tokenization.encode import encode_trace
from kvtune.tokenization.formats.openai_batch import write_line
from kvtune.tokenization.formats.usage import NO_USAGE, Usage, usage_of, usage_of_attributes
from kvtune.tokenization.reading import read_trace
from kvtune.tokenization.request import Request

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
VLLM = {
    "prompt_tokens": 110,
    "completion_tokens": 9,
    "total_tokens": 119,
    "prompt_tokens_details": {"cached_tokens": 96},
}


@pytest.mark.parametrize(
    ("record", "usage"),
    [
        ({"usage": VLLM}, (110, 96)),
        ({"response": {"usage": VLLM}}, (110, 96)),
        ({"response": {"status_code": 200, "body": {"usage": VLLM}}}, (110, 96)),  # OpenAI Batch output
        ({"usage": {**VLLM, "prompt_tokens_details": None}}, (110, None)),  # without the server's flag
        (
            {"usage": {"input_tokens": 110, "input_tokens_details": {"cached_tokens": 96}}},
            (110, 96),
        ),  # Responses
        # Anthropic counts cached tokens apart from input_tokens.
        (
            {"usage": {"input_tokens": 10, "cache_read_input_tokens": 96, "cache_creation_input_tokens": 4}},
            (110, 96),
        ),
        ({"usage": {"input_tokens": 110, "output_tokens": 3}}, (110, None)),
        # LiteLLM's usage of an Anthropic model keeps both; its prompt_tokens include the cached.
        ({"usage": {"prompt_tokens": 110, "cache_read_input_tokens": 96}}, (110, 96)),
        ({"metadata": {"usage_object": VLLM}, "prompt_tokens": 110}, (110, 96)),  # LiteLLM's standard payload
        ({"prompt_tokens": 110, "completion_tokens": 9}, (110, None)),  # a row of LiteLLM's spend logs
        ({"usage_details": {"prompt_tokens": 110, "completion_tokens": 9}}, (110, None)),  # Langfuse, as sent
        # Langfuse, as its server splits it: input without the cached.
        ({"usageDetails": {"input": 14, "input_cached_tokens": 96, "output": 9, "total": 119}}, (110, 96)),
        ({"usage": {"unit": "TOKENS", "input": 110, "output": 9}, "usageDetails": VLLM}, (110, 96)),
        ({"usage_details": json.dumps(VLLM)}, (110, 96)),  # a column of a CSV
        # LangChain's usage_metadata includes the cached.
        (
            {"outputs": {"usage_metadata": {"input_tokens": 110, "input_token_details": {"cache_read": 96}}}},
            (110, 96),
        ),
        ({"response_body": json.dumps({"usage": VLLM})}, (110, 96)),  # Helicone
        ({"promptTokens": 110, "promptCacheReadTokens": 96}, (110, 96)),
        ({"usageMetadata": {"promptTokenCount": 110, "cachedContentTokenCount": 96}}, (110, 96)),  # Gemini
        ({"usage": {"prompt_tokens": "110"}}, (110, None)),
        ({"usage": {"prompt_tokens": 0}}, NO_USAGE),  # LiteLLM's for a failed call
        ({"usage": {"prompt_tokens": -5}}, NO_USAGE),
        ({"usage": {"prompt_tokens": True}}, NO_USAGE),
        ({"usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 11}}}, (10, None)),
        ({"usage": "much"}, NO_USAGE),
        ({"input": 7}, NO_USAGE),  # a short name counts in a usage only
        ({"input_tokens": {"a": 1}}, NO_USAGE),
    ],
)
def test_every_name(record: dict, usage: tuple) -> None:
    assert usage_of(record, record.get("response")) == usage


@pytest.mark.parametrize(
    ("attributes", "usage"),
    [
        ({"gen_ai.usage.input_tokens": 110, "gen_ai.usage.cache_read.input_tokens": 96}, (110, 96)),
        ({"gen_ai.usage.prompt_tokens": 110, "gen_ai.usage.cache_read_input_tokens": 96}, (110, 96)),
        ({"llm.token_count.prompt": 110, "llm.token_count.prompt_details.cache_read": 96}, (110, 96)),
        ({"ai.usage.promptTokens": 110}, (110, None)),
        ({"gen_ai.usage.output_tokens": 9}, NO_USAGE),
    ],
)
def test_every_attribute(attributes: dict, usage: tuple) -> None:
    assert usage_of_attributes(attributes) == usage


def _read(tmp_path, *records: dict) -> list[Request]:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return read_trace([str(path)]).requests


@pytest.mark.parametrize(
    "record",
    [
        CHAT | {"usage": VLLM},
        {
            "custom_id": "a",
            "url": "/v1/chat/completions",
            "body": CHAT,
            "response": None,
            "usage": VLLM,
        },  # capture
        {
            "custom_id": "a",
            "url": "/v1/chat/completions",
            "body": CHAT,
            "response": {"body": {"usage": VLLM}},
        },
        {
            "id": "r",
            "call_type": "acompletion",
            "startTime": 1.5,
            **CHAT,
            "response": {"usage": VLLM},
        },  # LiteLLM
        {"id": "o", "type": "GENERATION", "trace_id": "t", "input": CHAT["messages"], "usageDetails": VLLM},
        {
            "request_body": CHAT,
            "response_body": {"usage": VLLM},
            "request_created_at": "2026-01-02T03:04:05Z",
        },
        {
            "name": "chat m",
            "context": {"trace_id": "t1", "span_id": "a1"},
            "start_time": "2026-01-02T03:04:05Z",
            "attributes": {
                "gen_ai.request.model": "m",
                "gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]',
                "gen_ai.usage.input_tokens": 110,
                "gen_ai.usage.cache_read.input_tokens": 96,
            },
        },
        {"prompt_token_ids": [1, 2, 3], "usage": VLLM},
    ],
)
def test_every_format_hands_it_on(tmp_path, record: dict) -> None:
    [request] = _read(tmp_path, record)
    assert (request.prompt_tokens, request.cached_tokens) == (110, 96)


def test_a_usage_of_several_prompts_belongs_to_none(tmp_path) -> None:
    first, second = _read(tmp_path, {"model": "m", "prompt": ["one", "two"], "usage": VLLM})
    assert first.prompt_tokens is None and second.prompt_tokens is None


def test_a_kept_line_keeps_it() -> None:
    request = Request(id="a", token_ids=[1, 2], prompt_tokens=110, cached_tokens=96)
    assert usage_of(msgspec.json.decode(write_line(request))) == Usage(110, 96)


def test_the_trace_holds_what_is_logged() -> None:
    requests = [
        Request(id="a", token_ids=[1, 2, 3], prompt_tokens=3, cached_tokens=0),
        Request(id="b", token_ids=[1, 2]),
        Request(id="c", token_ids=[1, 2, 3, 4], prompt_tokens=5),
    ]
    trace, _ = encode_trace(requests, None)
    assert trace.logged_prompt_tokens.tolist() == [3, -1, 5]
    assert trace.logged_cached_tokens.tolist() == [0, -1, -1]
    kept = trace.select(trace.prompt_tokens > 2)
    assert kept.logged_prompt_tokens.tolist() == [3, 5]
    trace, _ = encode_trace(requests[1:2], None)
    assert trace.logged_prompt_tokens is None and trace.logged_cached_tokens is None


def test_block_hashes_have_no_second_length() -> None:
    trace, _ = encode_trace([Request(id="a", block_hashes=[7], hash_block_size=16, prompt_tokens=16)], None)
    assert trace.logged_prompt_tokens is None
