"""The proxy against a real server on loopback, with real clients: what passes, and what is kept of it."""

from __future__ import annotations

import asyncio
import os
import threading

import aiohttp
import openai

from kvtune.tokenization.capture import writer
from kvtune.tokenization.reading import read_trace
from tests.tokenization.capture.client import chat, fetch


def test_fifty_parallel_streams_of_a_client_library(tmp_path, stack, expected_text):
    async def stream(client, body):
        text, usage = "", None
        async for chunk in await client.chat.completions.create(**body, extra_body={"pieces": 40}):
            usage = chunk.usage or usage
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        return text, usage

    async def scenario():
        async with (
            stack(tmp_path / "t.jsonl.gz") as (_, capture, _),
            openai.AsyncOpenAI(base_url=f"{capture.url}/v1", api_key="sk-secret", max_retries=0) as client,
        ):
            bodies = [chat(f"Nr {n}", stream=True, stream_options={"include_usage": True}) for n in range(50)]
            told = await asyncio.gather(*(stream(client, body) for body in bodies))
        return capture, bodies, told

    capture, bodies, told = asyncio.run(scenario())
    assert [text for text, _ in told] == [expected_text(body | {"pieces": 40}) for body in bodies]
    assert capture.counts.written == 50
    assert not capture.counts.lost and not capture.counts.not_recorded and not capture.counts.incomplete
    lines = {line["body"]["messages"][0]["content"]: line for line in capture.lines()}
    for body, (text, usage) in zip(bodies, told, strict=True):
        line = lines[body["messages"][0]["content"]]
        assert line["body"] == body | {"pieces": 40}
        assert line["response"] == {"role": "assistant", "content": text}
        assert line["usage"]["completion_tokens"] == usage.completion_tokens == 44
        assert 0 <= line["ttft_s"] <= line["e2e_s"]
        assert line["complete"] is True
    assert len({line["custom_id"] for line in lines.values()}) == 50


def test_a_stream_passes_byte_for_byte(tmp_path, stack, expected_stream):
    body = chat("Grüße", stream=True, tools=[{"type": "function", "function": {"name": "weather"}}])

    async def scenario():
        async with stack(tmp_path / "t.jsonl.gz") as (server, capture, session):
            direct = await fetch(session, server.url, body)
            through = await fetch(session, capture.url, body)
        return server, capture, direct, through

    server, capture, direct, through = asyncio.run(scenario())
    assert through == direct == (200, expected_stream(body))
    assert server.bodies[0] == server.bodies[1]
    (line,) = capture.lines()
    call = {
        "id": "call-1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Köln"}'},
    }
    assert line["response"]["tool_calls"] == [call]
    assert line["usage"] is None


def test_an_answer_that_is_not_streamed(tmp_path, stack, expected_text):
    async def scenario():
        async with (
            stack(tmp_path / "t.jsonl") as (_, capture, _),
            openai.AsyncOpenAI(base_url=f"{capture.url}/v1", api_key="k") as client,
        ):
            first = await client.chat.completions.create(**chat("Hi"))
            messages = [*chat("Hi")["messages"], first.choices[0].message.model_dump(exclude_none=True)]
            messages.append({"role": "user", "content": "More"})
            await client.chat.completions.create(model="m", messages=messages)
            await client.completions.create(model="m", prompt="Hello")
        return capture

    capture = asyncio.run(scenario())
    first, second, plain = capture.lines()
    assert first["response"] == {"role": "assistant", "content": expected_text(chat("Hi"))}
    assert first["usage"] == {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}
    assert (first["turn"], second["turn"]) == (0, 1)
    assert first["conversation"] == second["conversation"]
    assert second["custom_id"] == f"{second['conversation']}/1"
    assert (plain["url"], plain["response"], plain["conversation"]) == (
        "/v1/completions",
        {"text": " there"},
        None,
    )
    assert 0 <= first["timestamp"] < second["timestamp"] < plain["timestamp"] < 60


def test_other_endpoints_pass_unrecorded_with_headers_as_they_are(tmp_path, stack):
    async def scenario():
        async with stack(tmp_path / "t.jsonl") as (server, capture, session):
            url = capture.url + "/a%2Fb/%E2%82%AC?q=%20x&api-key=1"
            sent = {"X-Own": "1", "Authorization": "Bearer sk-1", "Connection": "X-Drop", "X-Drop": "1"}
            async with session.put(
                aiohttp.client.URL(url, encoded=True), data=b"abc", headers=sent
            ) as answer:
                told = await answer.json()
                headers, status = answer.headers, answer.status
            async with session.head(capture.url + "/health") as answer:
                assert (answer.status, await answer.read()) == (207, b"")
        return server, capture, told, headers, status

    server, capture, told, headers, status = asyncio.run(scenario())
    assert (status, told["method"], told["body"]) == (207, "PUT", "abc")
    assert told["path"] == "/a%2Fb/%E2%82%AC?q=%20x&api-key=1"
    assert server.headers[0]["Authorization"] == "Bearer sk-1"
    assert server.headers[0]["X-Own"] == "1" and "X-Drop" not in server.headers[0]
    assert server.headers[0]["Host"] == server.url.removeprefix("http://")
    assert headers["X-Kept"] == "yes" and "X-Hop" not in headers
    assert headers.getall("Set-Cookie") == ["a=1; Path=/", "b=2; Path=/"]
    assert capture.counts.passed_through == 2 and capture.lines() == []


def test_keys_and_headers_are_never_written(tmp_path, stack):
    secret = "sk-do-not-write"

    async def scenario():
        async with stack(tmp_path / "t.jsonl") as (server, capture, session):
            tools = [
                {
                    "type": "mcp",
                    "server_label": "s",
                    "headers": {"Authorization": secret},
                    "authorization": secret,
                },
                {"type": "function", "function": {"name": "f", "parameters": {"headers": {}}}},
            ]
            body = chat("Hi", api_key=secret, extra_headers={"a": secret}, tools=tools)
            headers = {"Authorization": f"Bearer {secret}", "api-key": secret, "Cookie": f"a={secret}"}
            url = f"{capture.url}/v1/chat/completions?api-key={secret}"
            async with session.post(url, json=body, headers=headers) as answer:
                assert answer.status == 200
        return server, capture

    server, capture = asyncio.run(scenario())
    assert secret.encode() in server.bodies[0]
    assert secret not in capture.path.read_text()
    (line,) = capture.lines()
    assert line["url"] == "/v1/chat/completions"
    assert line["body"]["tools"][0] == {"type": "mcp", "server_label": "s"}
    assert line["body"]["tools"][1] == {
        "type": "function",
        "function": {"name": "f", "parameters": {"headers": {}}},
    }
    assert capture.path.stat().st_mode & 0o777 == 0o600


def test_a_client_that_goes_away_costs_its_own_answer_only(tmp_path, stack, expected_text):
    async def scenario():
        async with stack(tmp_path / "t.jsonl.gz") as (server, capture, session):
            answer = await session.post(
                f"{capture.url}/v1/chat/completions", json=chat("Gone", stream=True) | {"model": "waits"}
            )
            while "é".encode() not in await answer.content.readline():
                pass
            waiting = asyncio.create_task(
                fetch(session, capture.url, chat("Stays", stream=True) | {"model": "waits"})
            )
            answer.close()
            for _ in range(200):
                if server.streams_cut:
                    break
                await asyncio.sleep(0.01)
            server.may_go_on.set()
            await waiting
            await fetch(session, capture.url, chat("Next"))
        return server, capture

    server, capture = asyncio.run(scenario())
    assert server.streams_cut == 1  # the server was told, so it can stop generating
    lines = {line["body"]["messages"][0]["content"]: line for line in capture.lines()}
    assert set(lines) == {"Gone", "Stays", "Next"}
    assert lines["Gone"]["complete"] is False
    assert lines["Gone"]["response"] == {"role": "assistant", "content": "Gone: é"}
    assert lines["Stays"]["response"]["content"] == expected_text(chat("Stays"))
    assert (capture.counts.written, capture.counts.incomplete) == (3, 1)


def test_a_client_that_gives_up_before_the_first_byte_tells_the_server(tmp_path, stack):
    async def scenario():
        async with stack(tmp_path / "t.jsonl") as (server, capture, session):
            asked = asyncio.create_task(fetch(session, capture.url, chat("Hi") | {"model": "prefills"}))
            while not server.bodies:
                await asyncio.sleep(0.01)
            asked.cancel()
            async with asyncio.timeout(5):
                while not server.streams_cut:
                    await asyncio.sleep(0.01)
        return capture

    (line,) = asyncio.run(scenario()).lines()
    assert (line["complete"], line["response"], line["ttft_s"]) == (False, None, None)
    assert line["body"]["messages"] == chat("Hi")["messages"]


def test_replies_do_not_wait_for_the_disk(tmp_path, stack, monkeypatch):
    may_write, real = threading.Event(), os.pwrite

    def stuck(descriptor, data, offset):
        may_write.wait(20)
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", stuck)
    monkeypatch.setattr(writer, "_LINGER_S", 0.0)

    async def scenario():
        async with stack(tmp_path / "t.jsonl") as (_, capture, session):
            async with asyncio.timeout(10):
                for number in range(20):
                    assert (await fetch(session, capture.url, chat(str(number), stream=True)))[0] == 200
            may_write.set()
        return capture

    assert asyncio.run(scenario()).counts.written == 20


def test_a_client_that_waits_to_be_told_to_send(tmp_path, stack):
    async def scenario():
        async with stack(tmp_path / "t.jsonl") as (server, capture, session):
            url = f"{capture.url}/v1/chat/completions"
            async with session.post(url, json=chat("x" * 100_000), expect100=True) as answer:
                assert answer.status == 200
            big = {"X-Big": "h" * 20_000}
            async with session.get(f"{capture.url}/health", headers=big) as answer:
                assert answer.status == 207
        return server, capture

    server, capture = asyncio.run(scenario())
    assert "Expect" not in server.headers[0] and len(server.headers[1]["X-Big"]) == 20_000
    assert capture.counts.written == 1


def test_what_was_captured_is_a_trace(tmp_path, stack, expected_text):
    path = tmp_path / "t.jsonl.gz"
    body = chat("Hi", tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
    usage = {"stream": True, "stream_options": {"include_usage": True}}

    async def scenario():
        async with stack(path) as (_, capture, session):
            await fetch(session, capture.url, body | usage)
            more = [
                *body["messages"],
                {"role": "assistant", "content": "A"},
                {"role": "user", "content": "B"},
            ]
            await fetch(session, capture.url, body | {"messages": more})
            async with session.post(f"{capture.url}/v1/completions", json={"prompt": [1, 2]}) as answer:
                await answer.read()

    asyncio.run(scenario())
    result = read_trace([str(path)])
    assert (result.stats.rejected, result.stats.formats) == (0, {"openai-batch": 3})
    first, second, third = result.requests
    assert (first.messages, first.tools) == (body["messages"], body["tools"])
    assert (first.output["content"], first.output_tokens) == (expected_text(body), 9)
    assert first.session == second.session is not None
    assert (third.token_ids, third.session, third.output_tokens) == ([1, 2], None, 1)
    assert first.arrival < second.arrival < third.arrival
