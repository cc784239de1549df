"""What `kvtune capture` adds to a server's time to first byte, under parallel streams on loopback.

A server, the capture and the clients are three processes of this machine. Clients are closed loops: each
sends its next request when its last stream has ended. Rounds go direct, through, through, direct; the ratio
is that of the medians over all rounds. Everything is bounded in count and time: about half a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
from aiohttp import web

STREAMS = 50
REQUESTS_PER_ROUND = 3
ORDER = ("direct", "through", "through", "direct") * 2
PROMPT_CHARACTERS = 20_000
OUTPUT_EVENTS = 48
INTER_TOKEN_S = 0.02  # 50 tokens per second and stream
SPREAD_S = 1.0
BAR = 1.05


async def chat(request: web.Request) -> web.StreamResponse:
    """A stream of OUTPUT_EVENTS chunks after the time to first token that the command line gave."""
    await request.read()
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await asyncio.sleep(request.app["ttft_s"])
    await response.prepare(request)
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    for number in range(OUTPUT_EVENTS):
        choice = {"index": 0, "delta": {"content": f" word{number}"}, "finish_reason": None}
        await response.write(b"data: " + json.dumps(head | {"choices": [choice]}).encode() + b"\n\n")
        await asyncio.sleep(INTER_TOKEN_S)
    await response.write(b"data: [DONE]\n\n")
    return response


def serve(ttft_s: float) -> None:
    """The server process: prints its URL and runs until it is told to end."""

    async def run() -> None:
        app = web.Application(client_max_size=1 << 24)
        app["ttft_s"] = ttft_s
        app.router.add_post("/v1/chat/completions", chat)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]} ->", file=sys.stderr, flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


def start(*command: str) -> tuple[subprocess.Popen[str], str]:
    """A process that prints its URL on stderr once it listens."""
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True)
    told = process.stderr.readline()
    found = re.search(r"(http://127\.0\.0\.1:\d+) ->", told)
    if found is None:
        process.kill()
        raise SystemExit(f"no URL from {command}: {told}")
    return process, found[1]


async def first_byte_s(session: aiohttp.ClientSession, url: str, body: bytes) -> float:
    headers = {"Content-Type": "application/json"}
    started = time.perf_counter()
    async with session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as answer:
        await answer.content.readany()
        first = time.perf_counter() - started
        await answer.read()
    return first


def _body(text: str) -> bytes:
    return json.dumps(
        {"model": "m", "stream": True, "messages": [{"role": "user", "content": text}]}
    ).encode()


async def measure(urls: dict[str, str], streams: int) -> dict[str, list[float]]:
    async def loop(session: aiohttp.ClientSession, url: str, number: int) -> list[float]:
        await asyncio.sleep(number * SPREAD_S / streams)
        body = _body(f"{number} " + "lorem ipsum " * (PROMPT_CHARACTERS // 12))
        return [await first_byte_s(session, url, body) for _ in range(REQUESTS_PER_ROUND)]

    taken: dict[str, list[float]] = {name: [] for name in urls}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for url in urls.values():
            await first_byte_s(session, url, _body("warm-up"))  # what is done once is nobody's latency
        for name in ORDER:
            loops = await asyncio.gather(*(loop(session, urls[name], number) for number in range(streams)))
            taken[name] += [value for values in loops for value in values]
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ttft", type=float, default=0.2, help="the server's time to first token, seconds")
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.ttft)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl.gz"
        server, direct = start(__file__, "--serve", "--ttft", str(arguments.ttft))
        capture, through = start(
            "-m", "kvtune", "capture", "--listen", "127.0.0.1:0", "--to", direct, "-o", str(trace)
        )
        try:
            taken = asyncio.run(measure({"direct": direct, "through": through}, arguments.streams))
        finally:
            capture.send_signal(signal.SIGINT)
            _, said = capture.communicate(timeout=30)
            server.kill()
            server.communicate(timeout=30)
        size = trace.stat().st_size
    medians = {name: statistics.median(values) for name, values in taken.items()}
    for name, values in taken.items():
        p90 = statistics.quantiles(values, n=10)[-1]
        print(
            f"{name:8} first byte: median {medians[name] * 1e3:7.2f} ms, p90 {p90 * 1e3:7.2f} ms, n {len(values)}"
        )
    ratio = medians["through"] / medians["direct"]
    print(
        f"server's own TTFT {arguments.ttft * 1e3:.0f} ms, {arguments.streams} parallel streams, {os.cpu_count()} cores"
    )
    print(f"added: {(medians['through'] - medians['direct']) * 1e3:.2f} ms, ratio {ratio:.4f} (bar {BAR})")
    print(f"recorded: {said.splitlines()[-1].removeprefix('kvtune: ').partition(': ')[2]}, {size} bytes")
    return int(ratio > BAR)


if __name__ == "__main__":
    sys.exit(main())
