"""The proxy where something fails: clients, servers, memory, targets, files. Nothing is lost in silence."""

from __future__ import annotations

import asyncio
import json
import socket

import aiohttp
import pytest

from kvtune.tokenization.capture.serve import CaptureSettings, serve
from kvtune.tokenization.errors import UnusableInputError
from tests.tokenization.capture.client import chat, fetch


def test_a_request_that_is_no_http_is_refused_without_a_word_of_it(tmp_path, stack, capfd):
    async def scenario():
        async with stack(tmp_path / "t.jsonl") as (_, capture, _):
            reader, out = await asyncio.open_connection("127.0.0.1", int(capture.url.rpartition(":")[2]))
            out.write(
                b"POST /v1/completions HTTP/1.1\r\nAuthorization: sk-secret" + b"s" * 70_000 + b"\r\n\r\n"
            )
            assert b" 400 " in await reader.readline()
            out.close()
        return capture

    capture = asyncio.run(scenario())
    assert capture.warnings == ["a request could not be served (LineTooLong)"]
    assert "secret" not in "".join(capfd.readouterr())


def test_a_server_that_dies_in_a_stream_cuts_the_client_too(tmp_path, stack):
    async def scenario():
        async with stack(tmp_path / "t.jsonl") as (_, capture, session):
            with pytest.raises(aiohttp.ClientPayloadError):
                await fetch(session, capture.url, chat("Hi", stream=True) | {"model": "dies"})
            status, _ = await fetch(session, capture.url, chat("Again"))
            assert status == 200
        return capture

    capture = asyncio.run(scenario())
    assert [line["complete"] for line in capture.lines()] == [False, True]


def test_refusals_and_an_absent_server_are_counted_not_written(tmp_path, stack, running_capture):
    async def scenario():
        async with stack(tmp_path / "t.jsonl") as (server, capture, session):
            refused = await fetch(session, capture.url, chat("Hi") | {"model": "refuses"})
            async with session.post(f"{capture.url}/v1/completions", data=b"{no json") as answer:
                assert answer.status == 200
            async with session.post(f"{capture.url}/v1/completions", data=b'{"echo": true}') as answer:
                assert answer.status == 200
        async with (
            running_capture(server.url, tmp_path / "u.jsonl") as alone,
            aiohttp.ClientSession() as session,
        ):
            absent = await fetch(session, alone.url, chat("Hi"))
        return capture, refused, alone, absent

    capture, refused, alone, absent = asyncio.run(scenario())
    assert refused[0] == 404
    assert capture.counts.not_recorded == {
        "answered with an error": 1,
        "body is no JSON object": 1,
        "body holds no prompt": 1,
    }
    assert absent[0] == 502
    assert json.loads(absent[1])["error"]["code"] == 502
    assert alone.counts.not_recorded == {"server not reached": 1}
    assert alone.lines() == [] and capture.lines() == []


def test_what_exceeds_the_memory_bound_passes_and_is_counted(tmp_path, stack):
    async def scenario():
        async with stack(tmp_path / "t.jsonl", max_held_bytes=300_000) as (server, capture, session):
            big = await fetch(session, capture.url, chat("x" * 400_000))
            small = await fetch(session, capture.url, chat("y" * 100_000))
        return server, capture, big, small

    server, capture, big, small = asyncio.run(scenario())
    assert (big[0], small[0]) == (200, 200)
    assert len(server.bodies[0]) > 400_000
    assert capture.counts.lost == {"memory bound reached": 1}
    assert [line["body"]["messages"][0]["content"] for line in capture.lines()] == ["y" * 100_000]
    assert len(capture.warnings) == 1


def test_ending_carries_open_requests_to_their_end(
    tmp_path, running_server, running_capture, expected_stream
):
    body = chat("Hi", stream=True) | {"model": "waits"}

    async def scenario(cut):
        async with running_server() as server, aiohttp.ClientSession() as session:
            async with running_capture(server.url, tmp_path / f"{cut}.jsonl") as capture:
                open_request = asyncio.create_task(fetch(session, capture.url, body))
                while not server.bodies:
                    await asyncio.sleep(0.01)
                capture.stop.set()
                await asyncio.sleep(0.1)
                with pytest.raises(aiohttp.ClientConnectionError):
                    await fetch(session, capture.url, chat("too late"))
                (capture.cut if cut else server.may_go_on).set()
            return capture, (await asyncio.gather(open_request, return_exceptions=True))[0]

    capture, answer = asyncio.run(scenario(cut=False))
    assert answer == (200, expected_stream(body))
    assert [line["complete"] for line in capture.lines()] == [True]
    capture, answer = asyncio.run(scenario(cut=True))
    assert isinstance(answer, aiohttp.ClientError)
    assert [line["complete"] for line in capture.lines()] == [False]


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("ftp://h", "no http or https URL"),
        ("127.0.0.1:8000", "no http or https URL"),
        ("http://u:p@h", "more than"),
        ("http://h/v1/", "/v1"),
        ("http://[", "no URL"),
    ],
)
def test_a_target_that_cannot_be_used(tmp_path, running_capture, target, found):
    async def scenario():
        async with running_capture(target, tmp_path / "t.jsonl"):
            pass

    with pytest.raises(UnusableInputError, match=found):
        asyncio.run(scenario())
    assert not (tmp_path / "t.jsonl").exists()


def test_a_capture_is_not_sent_to_itself(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def scenario(host):
        settings = CaptureSettings("127.0.0.1", port, f"http://{host}:{port}", tmp_path / "t.jsonl")
        await serve(settings, stop=asyncio.Event(), cut=asyncio.Event(), ready=print, warn=print)

    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(UnusableInputError, match="itself"):
            asyncio.run(scenario(host))
    assert not (tmp_path / "t.jsonl").exists()


def test_an_existing_file_is_kept_unless_forced(tmp_path, running_capture):
    path = tmp_path / "t.jsonl"
    path.write_text("mine\n")

    async def scenario(force):
        async with running_capture("http://127.0.0.1:9", path, force=force):
            pass

    with pytest.raises(UnusableInputError, match="exists"):
        asyncio.run(scenario(force=False))
    assert path.read_text() == "mine\n"
    asyncio.run(scenario(force=True))
    assert path.read_text() == ""
