"""Fields of bodies that change what a template renders: effort, tools of other dialects, items of agents, histories."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from kvtune.tokenization.reading import ReadResult, read_trace

HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"type": "function", "function": {"name": "f", "description": "Weather", "parameters": WEATHER}}


def read(*records: dict[str, Any]) -> ReadResult:
    return read_trace(["-"], stdin=io.BytesIO("".join(json.dumps(one) + "\n" for one in records).encode()))


@pytest.mark.parametrize(
    ("more", "kwargs"),
    [
        ({}, None),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            {"reasoning_effort": "none", "enable_thinking": True},
        ),
    ],
)
def test_effort_reaches_the_template(more: dict[str, Any], kwargs: dict[str, Any] | None) -> None:
    # vLLM 0.26 to 0.33: `build_chat_params` of the chat completion and responses protocols.
    (chat,) = read({"model": "m", "messages": HELLO} | more).requests
    assert chat.chat_template_kwargs == kwargs
    effort = {"reasoning": {"effort": more["reasoning_effort"]}} if "reasoning_effort" in more else {}
    rest = {name: value for name, value in more.items() if name != "reasoning_effort"}
    (response,) = read({"model": "m", "input": HELLO} | rest | effort).requests
    assert response.chat_template_kwargs == kwargs


@pytest.mark.parametrize(
    "tool",
    [
        FUNCTION,
        {"type": "function", "name": "f", "description": "Weather", "parameters": WEATHER},
        {"name": "f", "description": "Weather", "input_schema": WEATHER},
        {"toolSpec": {"name": "f", "description": "Weather", "inputSchema": {"json": WEATHER}}},
    ],
)
def test_tools_of_any_dialect_in_a_chat_body(tool: dict[str, Any]) -> None:
    (request,) = read(
        {"url": "/v1/chat/completions", "body": {"model": "m", "messages": HELLO, "tools": [tool]}}
    ).requests
    assert request.tools == [FUNCTION]


def test_chat_tools_in_an_anthropic_body() -> None:
    (request,) = read({"model": "m", "system": "s", "messages": HELLO, "tools": [FUNCTION]}).requests
    assert request.tools == [FUNCTION]


def test_items_of_coding_agents() -> None:
    items = [
        *HELLO,
        {"type": "web_search_call", "id": "ws", "status": "completed"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** é"},
        {"type": "local_shell_call", "call_id": "c2", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
        {"type": "local_shell_call_output", "id": "c2", "output": "a b"},
    ]
    tools = [
        {"type": "custom", "name": "apply_patch", "description": "Edit"},
        {"type": "web_search"},
        {
            "type": "namespace",
            "name": "fs",
            "tools": [{"type": "function", "name": "read", "parameters": {}}],
        },
    ]
    (request,) = read({"model": "m", "input": items, "tools": tools}).requests
    assert request.messages is not None
    assert [one["role"] for one in request.messages] == ["user", "assistant", "tool", "tool"]
    calls = request.messages[1]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["apply_patch", "local_shell"]
    assert calls[0]["function"]["arguments"] == '{"input": "*** é"}'
    assert [one["function"]["name"] for one in request.tools or ()] == ["apply_patch", "fs__read"]


def test_a_response_that_continues_one_of_the_log() -> None:
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]}
    first = {
        "request": {"model": "m", "instructions": "Be brief.", "input": "Hi"},
        "response": {"id": "r1", "output": [answer]},
    }
    then = {
        "request": {"model": "m", "input": "And?", "previous_response_id": "r1"},
        "response": {"id": "r2", "output": [answer]},
    }
    last = {"request": {"model": "m", "input": "So?", "previous_response_id": "r2"}}
    unknown = {"request": {"model": "m", "input": "So?", "previous_response_id": "r9"}}
    result = read(first, then, last, unknown)
    assert result.stats.rejected_by == {"stateful": 1}
    texts = [[one["content"] for one in request.messages or ()] for request in result.requests]
    # The instructions of an earlier response do not carry over.
    assert texts == [["Be brief.", "Hi"], ["Hi", "Hello", "And?"], ["Hi", "Hello", "And?", "Hello", "So?"]]


def test_vllm_logs_the_details_of_a_request_before_its_adapter() -> None:
    details = (
        "DEBUG 11-30 07:12:0{0} [logger.py:49] Request chatcmpl-{0} details: prompt: 'Hi {0}', "
        "prompt_token_ids: None, prompt_embeds shape: None."
    )
    received = (
        "INFO 11-30 07:12:0{0} [logger.py:61] Received request chatcmpl-{0}: params: SamplingParams(n=1), "
        "lora_request: {1}."
    )
    adapter = "LoRARequest(lora_name='sql', lora_int_id=1, lora_path='/l/sql')"
    lines = [details.format(0), received.format(0, adapter), details.format(1), received.format(1, "None")]
    result = read_trace(["-"], stdin=io.BytesIO("\n".join(lines).encode()))
    assert result.stats.rejected == 0
    assert [(one.identity.lora, one.identity.lora_path) for one in result.requests] == [
        ("sql", "/l/sql"),
        (None, None),
    ]


def test_trajectories_of_one_environment_are_conversations_of_their_own() -> None:
    step = {"query": HELLO, "response": "ok"}
    result = read(*({"environment": "swe_main", "trajectory": [step, step]} for _ in range(2)))
    assert [one.session for one in result.requests] == ["-:1", "-:1", "-:2", "-:2"]


def span(**attributes: Any) -> dict[str, Any]:
    return {"context": {"span_id": "a"}, "attributes": {"gen_ai.operation.name": "chat"} | attributes}


def test_events_and_tools_in_attributes_of_pydantic_ai() -> None:
    events = [
        {"event.name": "gen_ai.system.message", "role": "system", "content": "Be brief."},
        {"event.name": "gen_ai.user.message", "role": "user", "content": "hello"},
        {"event.name": "gen_ai.choice", "message": {"role": "assistant", "content": "hi"}},
    ]
    tool = {"name": "f", "description": "Weather", "parameters_json_schema": WEATHER}
    row = span(events=json.dumps(events), model_request_parameters=json.dumps({"function_tools": [tool]}))
    (request,) = read(row).requests
    assert request.messages == [{"role": "system", "content": "Be brief."}, *HELLO]
    assert request.tools == [FUNCTION]


def test_the_body_that_logfire_keeps_in_a_span() -> None:
    sent = {"model": "m", "messages": HELLO, "tools": [FUNCTION], "reasoning_effort": "none"}
    (request,) = read(span(request_data=json.dumps(sent))).requests
    assert (request.messages, request.tools) == (HELLO, [FUNCTION])
    assert request.chat_template_kwargs == {"reasoning_effort": "none", "enable_thinking": False}
