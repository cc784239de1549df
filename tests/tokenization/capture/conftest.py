"""A small OpenAI-compatible server on loopback, and a capture in front of it, in the test's own event loop."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from kvtune.tokenization.capture.serve import CaptureSettings, serve
from kvtune.tokenization.capture.writer import CaptureCounts


@dataclass
class LocalServer:
    """What the server saw; `model` in a request's body chooses how it behaves (see `_chat`)."""

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    streams_cut: int = 0
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)


def said(body: dict[str, Any]) -> list[str]:
    """The pieces of the answer to a request, a function of its last message."""
    text = body["messages"][-1]["content"]
    return [f"{text}: ", "é", " 漢", "字\n\ndata: no event", *(f" {n}" for n in range(body.get("pieces", 5)))]


def _usage(body: dict[str, Any]) -> dict[str, Any]:
    return {"prompt_tokens": 7, "completion_tokens": len(said(body)), "total_tokens": 7 + len(said(body))}


def sse(value: object) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def chat_events(body: dict[str, Any]) -> list[bytes]:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        *({"content": piece} for piece in said(body)),
    ]
    if body.get("tools"):
        for piece in ('{"city"', ': "Köln"}'):
            call = {"index": 0, "function": {"arguments": piece}}
            if piece == '{"city"':
                call |= {"id": "call-1", "type": "function"}
                call["function"] = {"name": "weather", "arguments": piece}
            deltas.append({"tool_calls": [call]})
    events = [
        sse(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) for delta in deltas
    ]
    events.append(sse(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append(sse(head | {"choices": [], "usage": _usage(body)}))
    return [*events, b": a comment\n\n", b"data: [DONE]\n\n"]


async def _stream(request: web.Request, body: dict[str, Any], seen: LocalServer) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "X-Trace": "1"}
    )
    await response.prepare(request)
    try:
        for number, event in enumerate(chat_events(body)):
            if body["model"] == "waits" and number == 3:
                await seen.may_go_on.wait()
            if body["model"] == "dies" and number == 3:
                request.transport.abort()
                return response
            # Pieces that end in the middle of an event, of a line and of a character.
            await response.write(event[: number + 20])
            await asyncio.sleep(0)
            await response.write(event[number + 20 :])
    except (ConnectionError, asyncio.CancelledError):
        seen.streams_cut += 1
        raise
    return response


def _app(seen: LocalServer) -> web.Application:
    async def chat(request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        seen.bodies.append(raw)
        seen.headers.append(dict(request.headers))
        body = json.loads(raw)
        if body["model"] == "refuses":
            return web.json_response({"error": {"message": "no such model", "code": 404}}, status=404)
        if body["model"] == "prefills":
            try:
                await seen.may_go_on.wait()
            except asyncio.CancelledError:
                seen.streams_cut += 1
                raise
        if body.get("stream"):
            return await _stream(request, body, seen)
        message = {"role": "assistant", "content": "".join(said(body)), "refusal": None, "tool_calls": []}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response(
            {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
            | {"usage": _usage(body)}
        )

    async def completions(request: web.Request) -> web.Response:
        seen.bodies.append(await request.read())
        choice = {"index": 0, "text": " there", "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return web.json_response(
            {"id": "t", "object": "text_completion", "choices": [choice], "usage": usage}
        )

    async def echo(request: web.Request) -> web.Response:
        body = await request.read()
        seen.headers.append(dict(request.headers))
        told = {"method": request.method, "path": request.raw_path, "body": body.decode(), "x": "\x00"}
        answer = web.json_response(
            told, status=207, headers={"X-Kept": "yes", "Connection": "X-Hop", "X-Hop": "no"}
        )
        answer.set_cookie("a", "1")
        answer.set_cookie("b", "2")
        return answer

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/v1/completions", completions)
    app.router.add_route("*", "/{rest:.*}", echo)
    return app


@asynccontextmanager
async def _running_server() -> AsyncIterator[LocalServer]:
    seen = LocalServer()
    runner = web.AppRunner(
        _app(seen),
        handler_cancellation=True,
        shutdown_timeout=0.1,
        max_field_size=1 << 16,
        max_line_size=1 << 16,
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    seen.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield seen
    finally:
        await runner.cleanup()


@dataclass
class Capture:
    """A capture under way; after its block `counts` and `lines()` tell what it kept."""

    path: Path
    url: str = ""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    warnings: list[str] = field(default_factory=list)
    counts: CaptureCounts | None = None

    def lines(self) -> list[dict[str, Any]]:
        opened = gzip.open if self.path.suffix == ".gz" else open
        with opened(self.path, "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file]


@asynccontextmanager
async def _running_capture(
    target: str, path: Path, *, max_held_bytes: int = 1 << 26, force: bool = False
) -> AsyncIterator[Capture]:
    capture = Capture(path)
    listening = asyncio.Event()

    def ready(url: str) -> None:
        capture.url = url
        listening.set()

    settings = CaptureSettings("127.0.0.1", 0, target, path, max_held_bytes, force)
    task = asyncio.create_task(
        serve(settings, stop=capture.stop, cut=capture.cut, ready=ready, warn=capture.warnings.append)
    )
    started = asyncio.create_task(listening.wait())
    await asyncio.wait((task, started), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        started.cancel()
        task.result()
    try:
        yield capture
    finally:
        capture.stop.set()
        capture.counts = await asyncio.wait_for(task, 20)


@asynccontextmanager
async def _stack(
    path: Path, **options: Any
) -> AsyncIterator[tuple[LocalServer, Capture, aiohttp.ClientSession]]:
    async with (
        _running_server() as server,
        _running_capture(server.url, path, **options) as capture,
        aiohttp.ClientSession() as session,
    ):
        yield server, capture, session


@pytest.fixture
def stack() -> Callable[..., AbstractAsyncContextManager[tuple[LocalServer, Capture, aiohttp.ClientSession]]]:
    """Server, capture in front of it, and a plain HTTP client."""
    return _stack


@pytest.fixture
def running_server() -> Callable[[], AbstractAsyncContextManager[LocalServer]]:
    return _running_server


@pytest.fixture
def running_capture() -> Callable[..., AbstractAsyncContextManager[Capture]]:
    return _running_capture


@pytest.fixture
def expected_text() -> Callable[[dict[str, Any]], str]:
    return lambda body: "".join(said(body))


@pytest.fixture
def expected_stream() -> Callable[[dict[str, Any]], bytes]:
    return lambda body: b"".join(chat_events(body))
