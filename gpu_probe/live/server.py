"""One server process: started in a group of its own, watched until it is ready, and stopped for certain.

Its output goes to a file, which is kept. Whatever ends this process (an error, Ctrl-C, a kill) ends the group too.
Knows processes and ports; what the log says is for `failure` and `facts`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvtune.gpu_probe.live import guard
from kvtune.gpu_probe.live.client import LiveClient
from kvtune.gpu_probe.live.command import HOST, ServeLine
from kvtune.gpu_probe.live.failure import died_while_loading, never_ready
from kvtune.tokenization.errors import MissingDependencyError

STOP_GRACE_S = 30.0
_POLL_S = 0.5
_TAIL_BYTES = 65_536

Progress = Callable[[str], None]


@dataclass
class Server:
    """A started server. `url` answers once `wait_until_ready` has returned; `shown` is the exact command."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    shown: str

    async def wait_until_ready(self, client: LiveClient, timeout_s: float, progress: Progress) -> None:
        """Until it answers; new lines of its log are the progress.

        Raises:
            MissingDependencyError: it died, or is not ready in time; the line names the log.
        """
        deadline = time.monotonic() + timeout_s
        read = 0
        while not await client.is_healthy():
            code = self.process.poll()
            if code is not None:
                raise died_while_loading(self.log, code)
            if time.monotonic() > deadline:
                raise never_ready(self.log, timeout_s)
            read = self._report_new_lines(read, progress)
            await asyncio.sleep(_POLL_S)

    def check_alive(self) -> None:
        """Raises: MissingDependencyError, if it has died since it was ready."""
        code = self.process.poll()
        if code is not None:
            raise died_while_loading(self.log, code, stage="while serving")

    def _report_new_lines(self, read: int, progress: Progress) -> int:
        size = self.log.stat().st_size
        if size > read:
            with self.log.open("rb") as file:
                file.seek(max(read, size - _TAIL_BYTES))
                lines = [
                    line
                    for line in file.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
                    if line.strip()
                ]
            if lines:
                progress(lines[-1].strip()[:200])
        return size


@contextmanager
def started(line: ServeLine, unit: int | None, log: Path) -> Iterator[Server]:
    """Start one candidate; when the block ends, however it ends, the whole group is gone.

    Raises:
        MissingDependencyError: the program is not there.
    """
    port = free_port()
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                line.start(unit, port),
                env=line.environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise MissingDependencyError(
                f"the server's program cannot be started: {error.strerror}",
                field="--serve",
                found=line.words[0],
                way_out="name it by its full path, or start this inside the environment that has it",
            ) from None
    watchdog = _watch(process.pid)
    try:
        yield Server(process, f"http://{HOST}:{port}", log, line.shown(unit, port))
    finally:
        stop_group(process)
        with contextlib.suppress(BrokenPipeError):
            watchdog.communicate(guard.RELEASED)


def free_port() -> int:
    """A port of this machine that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def stop_group(process: subprocess.Popen[bytes], grace_s: float = STOP_GRACE_S) -> None:
    """Ask the group to end, then make it; returns when none of its processes is left."""
    try:
        for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s)):
            deadline = time.monotonic() + patience
            os.killpg(process.pid, number)
            while time.monotonic() < deadline:
                process.poll()  # a dead leader is a group member until it is waited for
                os.killpg(process.pid, 0)
                time.sleep(0.05)
    except ProcessLookupError:
        pass
    except KeyboardInterrupt:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)


def _watch(group: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", guard.__file__, str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
