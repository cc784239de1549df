"""The same two conversations in every text format's own shape give the same requests.

Each file of tests/data/formats is written as its system writes; the figures beside each name say what that
format can carry: tools, times, sessions, answers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvtune.tokenization.reading import ReadResult, read_trace
from kvtune.tokenization.request import Message, Request

DATA = Path(__file__).parents[2] / "data" / "formats"

SYSTEM = {"role": "system", "content": "You run the front desk of a small library."}
PLAIN = [
    SYSTEM,
    {"role": "user", "content": "Is “The Dispossessed” in?"},
    {"role": "assistant", "content": "Yes, one copy is on the shelf."},
    {"role": "user", "content": "Keep it for me, please.\nName: Odo"},
    {"role": "assistant", "content": "Kept until Friday."},
]
CALL = {"name": "find_book", "arguments": {"title": "Kindred", "copies": 2}}
WITH_TOOL = [
    SYSTEM,
    {"role": "user", "content": "Two copies of Kindred?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": '{"free": 1}', "tool_call_id": "call_1"},
    {"role": "assistant", "content": "Only one is free."},
]
TOOLS = [
    {
        "name": "find_book",
        "description": "Looks a title up.",
        "parameters": {
            "type": "object",
            "properties": {"title": {"type": "string"}, "copies": {"type": "integer"}},
            "required": ["title"],
        },
    }
]
START = 1767323045.25  # 2026-01-02T03:04:05.25Z
ALL = [
    (PLAIN[:2], None, PLAIN[2], START),
    (WITH_TOOL[:2], TOOLS, WITH_TOOL[2], START + 0.5),
    (PLAIN[:4], None, PLAIN[4], START + 2),
    (WITH_TOOL[:4], TOOLS, WITH_TOOL[4], START + 3.25),
]

# file -> format, and whether it carries times and answers
WHOLE = {
    "openai-batch.jsonl": ("openai-batch", True),
    "openai-chat.jsonl": ("openai-chat", True),
    "openai-responses.jsonl": ("openai-responses", True),
    "anthropic.jsonl": ("anthropic", True),
    "litellm.jsonl": ("litellm", True),
    "langfuse.jsonl": ("langfuse", True),
    "langfuse-api.json": ("langfuse", True),
    "helicone.jsonl": ("helicone", True),
    "otel.jsonl": ("otel", True),
    "otel-events.jsonl": ("otel", False),
    "otel-numbered.jsonl": ("otel", False),
    "openinference.jsonl": ("otel", False),
    "sagemaker.jsonl": ("sagemaker", True),
    "aiperf.jsonl": ("aiperf", False),
    "request-column.csv": ("request-column", True),
}
PLAIN_ONLY = {
    "sharegpt.json": "sharegpt",
    "lmsys.jsonl": "lmsys",
    "wildchat.jsonl": "lmsys",
    "swe-agent.traj": "swe-agent",
}
WITHOUT_SESSIONS = {"sagemaker.jsonl"}


def read(name: str) -> ReadResult:
    return read_trace([str(DATA / name)], on_reject=lambda rejection: pytest.fail(str(rejection)))


def essence(message: Message) -> dict[str, Any]:
    """What a template can see of a message; arguments as the object that every engine renders."""
    kept = {"role": message["role"], "content": message.get("content")}
    if message.get("tool_calls"):
        functions = [call["function"] for call in message["tool_calls"]]
        kept["tool_calls"] = [
            {"name": one["name"], "arguments": json.loads(one["arguments"])} for one in functions
        ]
    if message.get("tool_call_id"):
        kept["tool_call_id"] = message["tool_call_id"]
    return kept


def messages_of(request: Request) -> list[dict[str, Any]]:
    assert request.messages is not None
    return [essence(message) for message in request.messages]


def tools_of(request: Request) -> list[dict[str, Any]] | None:
    return [tool["function"] for tool in request.tools] if request.tools else None


@pytest.mark.parametrize(("name", "form"), [(name, form) for name, (form, _) in WHOLE.items()])
def test_same_messages_tools_and_times(name: str, form: str) -> None:
    result = read(name)
    assert result.stats.format == form
    assert [(messages_of(one), tools_of(one), one.arrival) for one in result.requests] == [
        (messages, tools, time) for messages, tools, _, time in ALL
    ]
    if form != "aiperf":  # which names no model
        assert {one.identity.model for one in result.requests} == {"lib-7b"}


@pytest.mark.parametrize("name", [name for name, (_, answers) in WHOLE.items() if answers])
def test_same_answers(name: str) -> None:
    answers = [one.output for one in read(name).requests]
    assert [essence(one) for one in answers if isinstance(one, dict)] == [answer for _, _, answer, _ in ALL]


@pytest.mark.parametrize(
    "name", [name for name in WHOLE if name not in WITHOUT_SESSIONS | {"openai-batch.jsonl"}]
)
def test_same_sessions(name: str) -> None:
    sessions = [one.session for one in read(name).requests]
    assert sessions == ["lib-a", "lib-b", "lib-a", "lib-b"]


@pytest.mark.parametrize(("name", "form"), PLAIN_ONLY.items())
def test_conversations_without_tools(name: str, form: str) -> None:
    result = read(name)
    assert result.stats.format == form
    assert [messages_of(one) for one in result.requests] == [PLAIN[:2], PLAIN[:4]]
    assert [essence(one.output) for one in result.requests if isinstance(one.output, dict)] == [
        PLAIN[2],
        PLAIN[4],
    ]
    assert len({one.session for one in result.requests}) == 1


def test_tau_bench_sends_no_last_word_of_the_user() -> None:
    result = read("tau-bench.json")
    assert [messages_of(one) for one in result.requests] == [
        PLAIN[:2],
        PLAIN[:4],
        WITH_TOOL[:2],
        WITH_TOOL[:4],
    ]
    assert [one.id for one in result.requests] == ["0-0/0", "0-0/1", "1-0/0", "1-0/1"]
    assert [one.session for one in result.requests] == ["0-0", "0-0", "1-0", "1-0"]


def test_wildchat_times_are_the_turns() -> None:
    assert [one.arrival for one in read("wildchat.jsonl").requests] == [START, START + 2]


def test_litellm_names_server_and_length() -> None:
    result = read("litellm.jsonl")
    assert [one.server for one in result.requests] == [
        f"http://gpu-{number % 2}:8000/v1" for number in range(4)
    ]
    assert {one.identity.tenant for one in result.requests} == {None}
    assert [one.output_tokens for one in result.requests] == [7, 8, 9, 10]


def test_otel_server_is_its_address() -> None:
    assert {one.server for one in read("otel.jsonl").requests} == {"gpu-0:8000"}


def test_all_formats_in_one_trace_share_what_they_share() -> None:
    """Every text format, read together: equal conversations stay equal, whatever file they came from."""
    names = [str(DATA / name) for name in WHOLE]
    result = read_trace(names)
    prompts = [json.dumps(messages_of(one), sort_keys=True) for one in result.requests]
    assert len(result.requests) == 4 * len(WHOLE)
    assert len(set(prompts)) == 4
    assert len({one.id for one in result.requests}) == len(result.requests)
    assert result.stats.duplicate_ids > 0
