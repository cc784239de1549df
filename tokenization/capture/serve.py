"""Starts a capture and ends it: socket, file, server, and the order in which they go.

Needs aiohttp (extra `live`). Reads no arguments and prints nothing: `kvtune.cli.capture` does.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from aiohttp import web
from yarl import URL

from kvtune.tokenization.capture.exchange import MemoryBudget
from kvtune.tokenization.capture.proxy import MAX_HEADER_BYTES, PassThrough
from kvtune.tokenization.capture.writer import CaptureCounts, TraceWriter
from kvtune.tokenization.errors import UnusableInputError

_BACKLOG = 1024
_POLL_S = 0.05
_CUT_GRACE_S = 0.2


@dataclass(frozen=True)
class CaptureSettings:
    """Where to listen, where to send, where to write.

    Attributes:
        host, port: the address to listen on; port 0 lets the system choose.
        target: the server's URL without `/v1`.
        output: the trace, a new file; gzip where the name ends in `.gz`.
        max_held_bytes: bound on captured bytes in memory.
        force: replace `output` if it exists.
    """

    host: str
    port: int
    target: str
    output: Path
    max_held_bytes: int = 256 << 20
    force: bool = False


async def serve(
    settings: CaptureSettings,
    *,
    stop: asyncio.Event,
    cut: asyncio.Event,
    ready: Callable[[str], None],
    warn: Callable[[str], None],
) -> CaptureCounts:
    """Runs a capture until `stop` is set and what is under way then has ended, or `cut` is set too.

    Args:
        settings: what to do.
        stop: no new connections from then on; requests under way are carried to their end.
        cut: once stopped, break off what is still under way; what was captured of it is written.
        ready: told the URL to give to clients once they can connect.
        warn: told of trouble that costs records; may be called on another thread.

    Raises:
        UnusableInputError: the target is no http(s) URL, the address cannot be listened on, or the file
            cannot be created.
    """
    target = _target(settings.target)
    listener = _listen(settings.host, settings.port)
    url = _url_of(listener)
    if target.port == url.port and (target.host == url.host or _meet_on_loopback(target.host, url.host)):
        listener.close()
        raise UnusableInputError(
            "the capture would send to itself",
            field="--to",
            found=str(target),
            way_out="listen on another port",
        )
    budget = MemoryBudget(settings.max_held_bytes)
    try:
        writer = TraceWriter(settings.output, budget, warn, force=settings.force)
    except UnusableInputError:
        listener.close()
        raise
    proxy = PassThrough(target, writer, budget, time.monotonic())
    # Cancelled when the client goes away, so that the server behind is told at once, not at the next write.
    server = web.Server(
        proxy.handle,
        handler_cancellation=True,
        access_log=None,
        logger=_logger(warn),
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
    )
    runner = web.ServerRunner(server, shutdown_timeout=_CUT_GRACE_S)
    try:
        await runner.setup()
        site = web.SockSite(runner, listener, backlog=_BACKLOG)
        await site.start()
        ready(str(url.origin()))
        await stop.wait()
        await site.stop()
        server.pre_shutdown()  # idle connections end now, busy ones after their request
        while proxy.under_way and not cut.is_set():
            await asyncio.sleep(_POLL_S)
    finally:
        await runner.cleanup()
        while proxy.under_way:  # cancelled now; each hands over what it has before it ends
            await asyncio.sleep(_POLL_S)
        await proxy.close()
        counts = await asyncio.to_thread(writer.close)
    return counts


def is_loopback(host: str | None) -> bool:
    """Whether only this machine can be meant."""
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


def _meet_on_loopback(target: str | None, listening: str | None) -> bool:
    everywhere = ip_address(listening or "").is_unspecified
    return is_loopback(target) and (everywhere or is_loopback(listening))


class _ClassesOnly(logging.Handler):
    """Says once per kind that a request could not be served, by the exception's class: its text may quote headers."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        kind = type(error).__name__ if error else record.levelname
        if kind not in self._said:
            self._said.add(kind)
            self._warn(f"a request could not be served ({kind})")


def _logger(warn: Callable[[str], None]) -> logging.Logger:
    logger = logging.Logger("kvtune.capture")  # without a parent, so that nothing else prints what it gets
    logger.addHandler(_ClassesOnly(warn))
    return logger


def _target(text: str) -> URL:
    problem = None
    try:
        target = URL(text)
    except ValueError:
        problem = "no URL"
    else:
        if target.scheme not in ("http", "https") or not target.host:
            problem = "no http or https URL"
        elif target.query_string or target.fragment or target.user is not None:
            problem = "more than scheme, host, port and path"
        elif target.path.rstrip("/").endswith("/v1"):
            problem = "a URL with /v1, which clients send themselves"
    if problem is not None:
        raise UnusableInputError(
            "the server cannot be named like this",
            field="--to",
            found=problem,  # not the text itself: it may hold a password
            wanted="the server's URL without /v1, such as http://127.0.0.1:8000",
        )
    return target


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnusableInputError(
            "cannot listen there",
            field="--listen",
            found=f"{host}:{port}, {reason}",
            wanted="a free address of this machine",
            way_out="try another port",
        ) from None


def _url_of(listener: socket.socket) -> URL:
    host, port = listener.getsockname()[:2]
    return URL.build(scheme="http", host=host, port=port)
