"""The environment with a real vLLM, and one server of it per match unit.

These tests take minutes, so they run when they are asked for (`-m live`, which `make test-live` does) and are skipped
with a reason otherwise.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.sources import SizeSources
from kvtune.gpu_probe.live.options import Listener
from tests.live import served_model, traces

API_KEY = "key-of-these-tests"
READY_TIMEOUT_S = 400.0
QUIET = Listener(note=lambda text: None, log_line=lambda text: None, progress=lambda name, done, total: None)


_USERS_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
"""Looked up before the tests are given a cache folder of their own."""


def environment_folder() -> Path:
    """Where `setup_vllm.sh` puts the environment."""
    return Path(os.environ.get("KVTUNE_VLLM_ENV") or _USERS_CACHE / "kvtune" / "vllm-cpu")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    reason = None
    if not (environment_folder() / "built").is_file():
        reason = f"no vLLM in {environment_folder()}: tests/live/setup_vllm.sh builds it"
    elif "live" not in config.getoption("-m").split():
        reason = "needs minutes and a real vLLM: make test-live runs it"
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.live)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@dataclass(frozen=True)
class RealServer:
    """A vLLM that is ready."""

    unit: int | None
    url: str
    log: Path
    sources: SizeSources


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The served model's folder."""
    return served_model.write_model(tmp_path_factory.mktemp("model") / "tiny-next", traces.SAMPLE_MODEL)


@pytest.fixture(scope="session")
def sources(model: Path) -> SizeSources:
    """What is known beside the server: its model's config."""
    return SizeSources(model_config=ModelConfig.parse(json.loads((model / "config.json").read_text())))


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest,
    model: Path,
    sources: SizeSources,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RealServer]:
    """A server with the match unit of the parameter, behind a key."""
    from kvtune.gpu_probe.live.client import LiveClient
    from kvtune.gpu_probe.live.command import parse_serve_line
    from kvtune.gpu_probe.live.server import started

    line = parse_serve_line(served_model.serve_command(environment_folder(), model, "--api-key", API_KEY))
    log = tmp_path_factory.mktemp("logs") / f"{request.param}.log"
    with started(line, request.param, log) as process:

        async def ready() -> None:
            async with LiveClient(process.url, api_key=API_KEY) as client:
                await process.wait_until_ready(client, READY_TIMEOUT_S, lambda text: None)

        asyncio.run(ready())
        yield RealServer(request.param, process.url, log, sources)


@pytest.fixture(scope="session")
def airline() -> traces.Chats:
    return traces.airline()


@pytest.fixture(autouse=True, scope="session")
def nothing_is_left_running() -> Iterator[None]:
    """No process of these tests' servers outlives them."""
    yield
    assert processes_of(environment_folder()) == []


def processes_of(environment: Path) -> list[str]:
    """Command lines of running processes that came out of an environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            program = (entry / "exe").readlink()
        except OSError:
            continue
        if any(word.startswith(str(environment)) for word in words) or environment in program.parents:
            found.append(" ".join(words)[:200])
    return found
