"""The recipes of docs/getting-a-trace.md: their code runs, and kvtune reads what it writes.

Inputs have the shape that the named releases gave when the recipes were tried; LiteLLM itself is used where it is
installed, else a stand-in for the one name that the recipe imports.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import types
from pathlib import Path

import pytest

from kvtune.tokenization.reading import read_trace

TEXT = (Path(__file__).parents[2] / "docs" / "getting-a-trace.md").read_text()


def block(name: str) -> str:
    found = re.findall(rf"<!-- test: {name} -->\n```\w+\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    assert len(found) == 1, name
    return found[0]


def test_every_marked_block_is_tested_here() -> None:
    assert sorted(re.findall(r"<!-- test: ([\w-]+) -->", TEXT)) == [
        "litellm-callback",
        "nginx-log",
        "otel-file",
        "vllm-log",
    ]


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


STRICT = [{"type": "function", "function": TOOLS[0]["function"] | {"strict": True}}]


def litellm_call(call_type: str, number: int, messages: object, choice: dict, **options: object) -> dict:
    """What LiteLLM 1.110 hands to a callback, as far as the recipe looks."""
    return {
        "optional_params": {"temperature": 0.3, "extra_body": {}, **options},
        "litellm_params": {
            "api_key": "sk-secret",
            "api_base": "http://10.0.0.1:8000/v1",
            "litellm_session_id": options.pop("session", None),
        },
        "standard_logging_object": {
            "id": f"chatcmpl-{number}",
            "trace_id": "64d42531-7d09-4674-833a-a2143a0d2d0e",
            "call_type": call_type,
            "startTime": 1796023660.25 + number,
            "endTime": 1796023661.5 + number,
            "model": "Qwen/Qwen3-8B",
            "api_base": "",
            "messages": messages,
            "response": {
                "object": "chat.completion",
                "choices": [{"finish_reason": "stop", "index": 0} | choice],
                "usage": {"completion_tokens": 2, "prompt_tokens": 10, "total_tokens": 12},
            },
            "model_parameters": {"temperature": 0.3},
        },
    }


@pytest.fixture
def callback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict:
    path = tmp_path / "litellm-trace.jsonl"
    monkeypatch.setenv("KVTUNE_TRACE", str(path))
    try:
        import litellm  # noqa: F401
    except ImportError:
        names = ("litellm", "litellm.integrations", "litellm.integrations.custom_logger")
        for name in names:
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        sys.modules[names[-1]].CustomLogger = object  # type: ignore[attr-defined]
    names_of_recipe: dict = {"path": path}
    exec(block("litellm-callback"), names_of_recipe)
    return names_of_recipe


def test_the_litellm_callback(callback: dict) -> None:
    hello = {"message": {"content": "Hello", "role": "assistant", "tool_calls": None, "function_call": None}}
    messages = [{"role": "user", "content": "Hi"}]
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "cache_salt": "x"}
    calls = [
        litellm_call("acompletion", 1, messages, hello, session="S2", tools=TOOLS, extra_body=extra),
        litellm_call("completion", 0, messages, hello, tools=STRICT)
        | {"additional_args": {"complete_input_dict": {"model": "m", "messages": messages, "tools": TOOLS}}},
        litellm_call("atext_completion", 2, [{"role": "user", "content": "Once"}], {"text": "upon"}),
        litellm_call("text_completion", 3, [1, 2, 3], {"text": "upon"}),
        litellm_call("aembedding", 4, messages, {}),
        litellm_call("acompletion", 5, [{"role": "user", "content": "redacted-by-litellm"}], hello),
    ]

    async def log() -> None:
        logger = callback["trace_logger"]
        for call in calls[:-1]:
            await logger.async_log_success_event(call, None, None, None)
        logger.log_success_event(calls[-1], None, None, None)

    asyncio.run(log())
    assert "sk-secret" not in callback["path"].read_text()
    result = read_trace([str(callback["path"])])
    assert (result.stats.rejected, result.stats.formats) == (0, {"openai-batch": 4})
    plain, full, text, ids = result.requests
    assert (plain.id, full.id, text.id, ids.id) == ("chatcmpl-0", "chatcmpl-1", "chatcmpl-2", "chatcmpl-3")
    assert full.messages == plain.messages == messages
    assert (full.tools, full.chat_template_kwargs, full.session) == (TOOLS, {"enable_thinking": False}, "S2")
    assert (full.identity.cache_salt, full.identity.model) == ("x", "Qwen/Qwen3-8B")
    # What LiteLLM sent on, not what its client said.
    assert (plain.session, plain.server, plain.tools) == (None, "http://10.0.0.1:8000/v1", TOOLS)
    assert full.arrival is not None and plain.arrival is not None and full.arrival - plain.arrival == 1.0
    assert isinstance(full.output, dict) and full.output["content"] == "Hello"
    assert (text.text, ids.token_ids) == ("Once", [1, 2, 3])


NGINX = [
    # As nginx 1.22 wrote them by the log_format of the recipe: the body's quotes, \n and \u escapes doubled.
    r'{"custom_id":"8cb928f7","method":"POST","url":"/v1/chat/completions","status":200,"ended":1796023746.071,'
    r'"took":0.766,"server":"127.0.0.1:9100","body":"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",'
    r'\"content\":\"Grüße \\\"x\\\" \\\\n \\u0007\"}]}"}',
    r'{"custom_id":"0c3b0b90","method":"POST","url":"/v1/completions","status":200,"ended":1796023746.0,'
    r'"took":0.8,"server":"127.0.0.1:9101","body":"{\"model\":\"m\",\n\"prompt\":\"Once\"}"}',
    r'{"custom_id":"b53127a5","method":"GET","url":"/v1/models","status":200,"ended":1796023747.0,"took":0.0,'
    r'"server":"127.0.0.1:9100","body":""}',
    r'{"custom_id":"refused","method":"POST","url":"/v1/completions","status":404,"ended":1796023747.0,'
    r'"took":0.0,"server":"127.0.0.1:9100","body":"{\"model\":\"n\",\"prompt\":\"Once\"}"}',
]


def test_the_nginx_log(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join([*NGINX, block("nginx-log")]) + "\n")
    result = read_trace([str(path)])
    assert (result.stats.rejected, result.stats.reordered) == (0, 1)
    first, second, shown = result.requests
    assert (first.text, first.server) == ("Once", "127.0.0.1:9101")
    assert second.messages == [{"role": "user", "content": 'Grüße "x" \\n \x07'}]
    assert first.arrival is not None and second.arrival is not None
    assert second.arrival - first.arrival == pytest.approx(0.105)
    assert (shown.text, shown.arrival) == ("Once", second.arrival)


SPAN = {
    # As opentelemetry-sdk 1.45 and opentelemetry-instrumentation-openai-v2 2.4b0 wrote it.
    "name": "chat m",
    "context": {
        "trace_id": "0x4d185f26871ae0df9edc083cec6956a9",
        "span_id": "0x3328607cbe367368",
        "trace_state": "[]",
    },
    "kind": "SpanKind.CLIENT",
    "parent_id": None,
    "start_time": "2026-11-30T07:29:37.387260Z",
    "end_time": "2026-11-30T07:29:37.407361Z",
    "status": {"status_code": "UNSET"},
    "attributes": {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.provider.name": "openai",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 1,
        "gen_ai.input.messages": json.dumps(
            [
                {"role": "system", "parts": [{"content": "Be brief", "type": "text"}]},
                {"role": "user", "parts": [{"content": "Hi", "type": "text"}]},
                {
                    "role": "assistant",
                    "parts": [{"arguments": {}, "name": "f", "id": "a", "type": "tool_call"}],
                },
                {"role": "tool", "parts": [{"response": "1", "id": "a", "type": "tool_call_response"}]},
            ]
        ),
        "gen_ai.output.messages": json.dumps(
            [{"role": "assistant", "parts": [{"content": "Hello", "type": "text"}], "finish_reason": "stop"}]
        ),
    },
    "events": [],
    "links": [],
    "resource": {"attributes": {"service.name": "unknown_service:python"}, "schema_url": ""},
}


def write_with_the_recipe() -> None:
    """Runs the recipe with the real SDK: a span with the attributes of SPAN."""
    names: dict = {}
    exec(block("otel-file"), names)
    with names["provider"].get_tracer("t").start_as_current_span(SPAN["name"], attributes=SPAN["attributes"]):
        pass
    names["provider"].shutdown()
    names["spans"].close()


@pytest.mark.parametrize("real", [False, True], ids=["as-written", "by-the-sdk"])
def test_the_otel_file(real: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if real:
        write_with_the_recipe()
    else:
        (tmp_path / "spans.jsonl").write_text(json.dumps(SPAN) + "\n")
    result = read_trace(["spans.jsonl"])
    assert result.stats.rejected == 0
    (request,) = result.requests
    assert request.messages is not None
    assert [message["role"] for message in request.messages] == ["system", "user", "assistant", "tool"]
    assert request.messages[1]["content"] == "Hi"
    assert request.messages[2]["tool_calls"][0]["function"]["name"] == "f"
    assert (request.identity.model, request.output_tokens) == ("m", 1)
    assert request.arrival is not None


def test_the_vllm_log(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(block("vllm-log"))
    result = read_trace([str(path)])
    (request,) = result.requests
    assert request.id == "chatcmpl-1"
    assert request.text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
