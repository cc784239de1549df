"""HTTP to one vLLM server: pages, JSON calls, and streamed completions.

GETs and connections that were never made are tried again; a request that may have reached the engine never is, since
it may have changed the cache. Knows the wire; not what the answers mean. Needs aiohttp (extra `live`).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
from yarl import URL

from kvtune.gpu_probe.live.answer import Answer, kind_of_error, take_event
from kvtune.gpu_probe.live.event_stream import EventSplitter
from kvtune.tokenization.errors import KvtuneError, MissingDependencyError, UnusableInputError

KEY_VARIABLE = "KVTUNE_API_KEY"
CONNECT_TIMEOUT_S = 10.0
PAGE_TIMEOUT_S = 30.0
MAX_PAGE_BYTES = 64 << 20
_ATTEMPTS = 3
_ERROR_BYTES = 65_536
_BACKOFF_S = 0.2
_KEEPALIVE_S = 2.0
"""Below the 5 s after which the server closes idle connections, so that no request meets a closing one."""


class RefusedRequestError(Exception):
    """The server refused one request (400, 413, 422) and goes on. `str` says of which kind, never with its words."""


class LiveClient:
    """A session with one server; use as an async context manager.

    Args:
        url: the server's URL; a trailing `/v1` is taken off.
        api_key: sent as a bearer token, and never shown.
        read_timeout_s: the longest silence within an answer.
    """

    def __init__(self, url: str, *, api_key: str | None = None, read_timeout_s: float = 600.0) -> None:
        self.base = _base_url(url)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._read_timeout_s = read_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=self._read_timeout_s
            ),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def is_healthy(self) -> bool:
        """Whether `/health` answers 200 right now."""
        try:
            async with self._open.get(
                self._url("/health"), timeout=aiohttp.ClientTimeout(total=5)
            ) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def get_text(self, path: str, **query: str) -> str:
        """A page, at most `MAX_PAGE_BYTES`.

        Raises:
            MissingDependencyError: no answer, or none with status 200.
        """
        return (await self._idempotent("GET", path, query)).decode("utf-8", "replace")

    async def get_json(self, path: str, *, timeout_s: float = PAGE_TIMEOUT_S, **query: str) -> Any:
        """The same, decoded."""
        return _decoded(await self._idempotent("GET", path, query, timeout_s=timeout_s), self._url(path))

    async def post_json(self, path: str, body: object) -> Any:
        """A call that changes nothing on the server, so that it may be repeated."""
        return _decoded(await self._idempotent("POST", path, {}, msgspec.json.encode(body)), self._url(path))

    async def post_once(self, path: str) -> int:
        """A call without a body, sent once; gives the status."""
        try:
            async with self._open.post(self._url(path), timeout=_page_timeout()) as response:
                return response.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._no_answer(path, error) from None

    async def complete(self, path: str, body: bytes) -> Answer:
        """Send one streaming completion and read it to its end.

        Raises:
            RefusedRequestError: the server refuses this request.
            MissingDependencyError: no connection, an error of the server, or a stream that broke.
        """
        for attempt in range(_ATTEMPTS):
            answer = Answer(sent=time.perf_counter())
            try:
                await self._stream(path, body, answer)
            except aiohttp.ClientConnectorError as error:  # nothing was sent
                if attempt == _ATTEMPTS - 1:
                    raise self._no_answer(path, error) from None
                await asyncio.sleep(_BACKOFF_S * 2**attempt)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise _broken(path, answer, error) from None
            else:
                return answer
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _stream(self, path: str, body: bytes, answer: Answer) -> None:
        headers = {"Content-Type": "application/json"}
        async with self._open.post(self._url(path), data=body, headers=headers) as response:
            if response.status != 200:
                raise await self._refusal(path, response)
            ended = False
            async for data in _events(response):
                now = time.perf_counter()
                if data == b"[DONE]":
                    ended = True
                    break
                take_event(data, now, answer, where=str(self._url(path)))
            answer.finished = time.perf_counter()
        if not ended:
            raise aiohttp.ClientPayloadError("the stream ended early")

    async def _idempotent(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: bytes | None = None,
        timeout_s: float = PAGE_TIMEOUT_S,
    ) -> bytes:
        url = self._url(path).update_query(query)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        for attempt in range(_ATTEMPTS):
            try:
                async with self._open.request(
                    method, url, data=body, headers=headers, timeout=_page_timeout(timeout_s)
                ) as response:
                    if response.status != 200:
                        raise await self._refusal(path, response)
                    return await _bounded(response, str(url))
            except (aiohttp.ClientError, TimeoutError) as error:
                if attempt == _ATTEMPTS - 1:
                    raise self._no_answer(path, error) from None
                await asyncio.sleep(_BACKOFF_S * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _refusal(self, path: str, response: aiohttp.ClientResponse) -> Exception:
        where = str(self._url(path))
        if response.status in (401, 403):
            return MissingDependencyError(
                f"the server wants another API key (HTTP {response.status})",
                where=where,
                way_out=f"set {KEY_VARIABLE}",
            )
        if response.status in (400, 413, 422):
            document = _json_or_none(await response.content.read(_ERROR_BYTES))
            return RefusedRequestError(f"HTTP {response.status}: {kind_of_error(document)}")
        if response.status == 404:
            return MissingDependencyError(
                "the server has no such path (HTTP 404)",
                where=where,
                way_out="give the URL of a vLLM server, without /v1",
            )
        return MissingDependencyError(f"the server answered HTTP {response.status}", where=where)

    def _no_answer(self, path: str, error: BaseException) -> KvtuneError:
        if isinstance(error, TimeoutError):
            found = "no answer in time"
        elif isinstance(error, aiohttp.ClientConnectorError):
            found = os.strerror(error.os_error.errno) if error.os_error.errno else "no such host"
        else:
            found = type(error).__name__
        return MissingDependencyError(
            "the server does not answer",
            where=str(self._url(path)),
            found=found,
            way_out="check that it runs there",
        )

    @property
    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("LiveClient is used outside its context")
        return self._session

    def _url(self, path: str) -> URL:
        return self.base.joinpath(path.lstrip("/"))


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    splitter = EventSplitter()
    async for chunk in response.content.iter_any():
        for data in splitter.feed(chunk):
            yield data


async def _bounded(response: aiohttp.ClientResponse, where: str) -> bytes:
    parts, size = [], 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > MAX_PAGE_BYTES:
            raise MissingDependencyError(
                "the page is too long", where=where, wanted=f"at most {MAX_PAGE_BYTES} bytes"
            )
        parts.append(chunk)
    return b"".join(parts)


def _page_timeout(total_s: float = PAGE_TIMEOUT_S) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total_s, sock_connect=CONNECT_TIMEOUT_S)


def _decoded(data: bytes, url: URL) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        raise MissingDependencyError(
            "the answer is no JSON", where=str(url), wanted="a vLLM server"
        ) from None


def _broken(path: str, answer: Answer, error: BaseException) -> KvtuneError:
    found = "silence" if isinstance(error, TimeoutError) else type(error).__name__
    return MissingDependencyError(
        f"an answer broke off after {len(answer.events)} events",
        where=path,
        found=found,
        way_out="the run is void, since nobody knows what this request left in the cache",
    )


def _json_or_none(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return None


def _base_url(text: str) -> URL:
    problem = None
    try:
        url = URL(text)
        if url.scheme not in ("http", "https") or not url.host:
            problem = "no http or https URL"
        elif url.query_string or url.fragment or url.user is not None:
            problem = "more than scheme, host, port and path"
    except ValueError:
        problem = "no URL"
    if problem is not None:
        raise UnusableInputError(
            "the server cannot be named like this",
            field="--endpoint",
            found=problem,  # not the text itself: it may hold a password
            wanted="a URL such as http://127.0.0.1:8000",
        )
    path = url.path.rstrip("/").removesuffix("/v1")
    return url.with_path(path or "/")
