"""Carries requests to one server and its answers back, byte for byte, keeping a copy of what is recorded.

Needs aiohttp (extra `live`). Knows HTTP, not what bodies mean. What it changes on the way: hop-by-hop
headers, as every proxy must, and `Accept-Encoding`, set to `identity` so that the copy can be read.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from kvtune.tokenization.capture.exchange import Exchange, MemoryBudget
from kvtune.tokenization.capture.record import recordable
from kvtune.tokenization.capture.writer import TraceWriter

# RFC 9110 section 7.6.1, and what this proxy answers itself or sets anew.
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)
_REQUEST_ONLY = frozenset({"host", "expect", "accept-encoding"})

# Below the 5 s after which uvicorn (vLLM's server) closes an idle connection: a request that is sent into
# a connection just being closed would be lost, and a POST is not to be sent twice.
_KEEPALIVE_S = 4.0
_CONNECT_S = 30.0

MAX_HEADER_BYTES = 65_536
"""Of one header line, as much as uvicorn takes: the proxy is not to refuse what the server would not."""


class PassThrough:
    """The handler of a low-level aiohttp server; one client session to the server behind it.

    Args:
        target: the server's origin, with a path that is put before each request's own.
        writer: gets each recorded exchange when it has ended.
        budget: the memory that copies are taken from.
        started: `time.monotonic()` at the start of the capture.
    """

    def __init__(self, target: URL, writer: TraceWriter, budget: MemoryBudget, started: float) -> None:
        self._prefix = str(target).rstrip("/")
        self._writer = writer
        self._budget = budget
        self._started = started
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Accept", "Content-Type", "User-Agent"),
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )
        self.under_way = 0

    async def close(self) -> None:
        await self._session.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        exchange = None
        if recordable(request.method, request.path):
            exchange = Exchange(request.path, time.monotonic() - self._started)
            exchange.request_encoded = _is_encoded(request.headers)
        else:
            self._writer.counts.passed_through += 1
        self.under_way += 1
        try:
            return await self._carry(request, exchange)
        except aiohttp.ClientError as error:
            # Nothing of an answer has come: _return_answer deals with all that may happen after that.
            if exchange is not None:
                self._writer.counts.not_recorded["server not reached"] += 1
                self._budget.give_back(exchange.held_bytes)
                exchange = None
            return _bad_gateway(error)
        finally:
            self.under_way -= 1
            if exchange is not None:
                exchange.e2e_s = self._since(exchange)
                self._writer.put(exchange)

    def _since(self, exchange: Exchange) -> float:
        return time.monotonic() - self._started - exchange.arrival_s

    async def _carry(self, request: web.BaseRequest, exchange: Exchange | None) -> web.StreamResponse:
        headers = _end_to_end(request.headers, but=_REQUEST_ONLY)
        headers["Accept-Encoding"] = "identity"
        async with self._session.request(
            request.method,
            URL(self._prefix + request.raw_path, encoded=True),
            headers=headers,
            data=self._request_body(request, exchange) if request.can_read_body else None,
            allow_redirects=False,
        ) as answer:
            return await self._return_answer(request, answer, exchange)

    async def _request_body(
        self, request: web.BaseRequest, exchange: Exchange | None
    ) -> AsyncIterator[bytes]:
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        async for chunk in request.content.iter_any():
            if exchange is not None:
                exchange.keep(chunk, exchange.body, self._budget)
            yield chunk

    async def _return_answer(
        self, request: web.BaseRequest, answer: aiohttp.ClientResponse, exchange: Exchange | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            status=answer.status, reason=answer.reason, headers=_end_to_end(answer.headers, but=())
        )
        if exchange is not None:
            exchange.status = answer.status
            exchange.answer_encoded = _is_encoded(answer.headers)
            exchange.streamed = answer.content_type == "text/event-stream"
        try:
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                if exchange is not None and exchange.ttft_s is None:
                    exchange.ttft_s = self._since(exchange)
                await response.write(chunk)
                if exchange is not None:
                    exchange.keep(chunk, exchange.answer, self._budget)
            await response.write_eof()
            if exchange is not None:
                exchange.complete = True
        except (aiohttp.ClientError, ConnectionError):
            # One side broke off. The other must see that too: the server, so that it stops generating; the
            # client, so that it doesn't take half an answer for a whole one.
            answer.close()
            if request.transport is not None:
                request.transport.close()
        return response


def _end_to_end(headers: CIMultiDictProxy[str], but: Iterable[str]) -> CIMultiDict[str]:
    dropped = _HOP_BY_HOP.union(but)
    for value in headers.getall("Connection", ()):
        dropped = dropped.union(name.strip().lower() for name in value.split(","))
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)


def _is_encoded(headers: CIMultiDictProxy[str]) -> bool:
    return headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity")


def _bad_gateway(error: aiohttp.ClientError) -> web.Response:
    """As OpenAI-compatible servers word their errors; the cause by its class only."""
    message = f"kvtune capture: no answer from the server behind it ({type(error).__name__})"
    return web.json_response(
        {"error": {"message": message, "type": "bad_gateway", "param": None, "code": 502}}, status=502
    )
