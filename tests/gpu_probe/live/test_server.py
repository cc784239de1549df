"""Processes that start, never get ready, ignore signals and leave children: none survives its block."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from kvtune.gpu_probe.live import server
from kvtune.gpu_probe.live.client import LiveClient
from kvtune.gpu_probe.live.command import ServeLine
from kvtune.gpu_probe.live.server import free_port, started
from kvtune.tokenization.errors import MissingDependencyError

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("children are there", flush=True)
time.sleep(60)
"""
HEALTHY = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *arguments): pass
print("loading weights", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Answer).serve_forever()
"""


def line(program: str) -> ServeLine:
    return ServeLine((), (sys.executable, "-c", program))


def group_members(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def wait_for_text(log: Path, text: str) -> None:
    deadline = time.monotonic() + 20
    while text not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_server_that_gets_ready(tmp_path: Path) -> None:
    lines: list[str] = []

    async def wait(process: server.Server) -> None:
        async with LiveClient(process.url) as client:
            await process.wait_until_ready(client, 20, lines.append)

    with started(line(HEALTHY), None, tmp_path / "log") as process:
        asyncio.run(wait(process))
        group = process.process.pid
        assert f"--port {process.url.rsplit(':', 1)[1]}" in process.shown
    assert group_members(group) == []
    assert (tmp_path / "log").read_text() == "loading weights\n"


def test_one_that_ignores_the_polite_signal_dies_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.stop_group, "__defaults__", (0.3,))
    with started(line(STUBBORN), None, tmp_path / "log") as process:
        wait_for_text(tmp_path / "log", "children are there")
        assert len(group_members(process.process.pid)) == 2
    assert group_members(process.process.pid) == []
    assert process.process.returncode == -signal.SIGKILL


def test_an_exception_in_the_block_stops_it_too(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        started(line("import time; time.sleep(60)"), 16, tmp_path / "log") as process,
    ):
        raise KeyboardInterrupt
    assert group_members(process.process.pid) == []


@pytest.mark.parametrize(
    ("program", "said"), [("raise SystemExit('no such model')", "exit code 1): no such model")]
)
def test_one_that_dies(tmp_path: Path, program: str, said: str) -> None:
    async def wait(process: server.Server) -> None:
        async with LiveClient(process.url) as client:
            await process.wait_until_ready(client, 20, lambda text: None)

    with (
        pytest.raises(MissingDependencyError) as caught,
        started(line(program), None, tmp_path / "log") as process,
    ):
        asyncio.run(wait(process))
    assert said in str(caught.value)


def test_one_that_is_never_ready(tmp_path: Path) -> None:
    async def wait(process: server.Server) -> None:
        async with LiveClient(process.url) as client:
            await process.wait_until_ready(client, 0.5, lambda text: None)

    with (
        pytest.raises(MissingDependencyError, match=r"not ready after 0\.5 s"),
        started(line("import time; time.sleep(60)"), None, tmp_path / "log") as process,
    ):
        asyncio.run(wait(process))
    assert group_members(process.process.pid) == []


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with (
        pytest.raises(MissingDependencyError, match="No such file"),
        started(ServeLine((), ("no-such-program",)), None, tmp_path / "log"),
    ):
        pass


def test_the_group_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = f"""
import sys, time
from pathlib import Path
from kvtune.gpu_probe.live.command import ServeLine
from kvtune.gpu_probe.live.server import started
line = ServeLine((), (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"))
with started(line, None, Path({str(tmp_path / "log")!r})) as process:
    print(process.process.pid, flush=True)
    time.sleep(60)
"""
    runner = subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert runner.stdout is not None
    group = int(runner.stdout.readline())
    wait_for_text(tmp_path / "log", "up")
    runner.kill()
    runner.communicate(timeout=10)
    deadline = time.monotonic() + 10
    while group_members(group):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ports_are_free() -> None:
    assert free_port() != free_port()
