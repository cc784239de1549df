"""A `capture` of a real vLLM: its own counts agree with the analysis, request by request; a wrong setting is named."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtune.gpu_probe.live.client import LiveClient
from kvtune.gpu_probe.live.command import parse_serve_line
from kvtune.gpu_probe.live.server import started
from kvtune.tokenization.reading import read_trace
from tests.live import served_model, traces
from tests.live.command_line import run, start
from tests.live.conftest import READY_TIMEOUT_S, environment_folder

UNIT = 16
CHATS = 40
ANALYZE_S = 300.0


def bodies() -> Iterator[tuple[str, dict[str, Any]]]:
    """Chats of the bundled sample, then six prompts of whole blocks, each three times."""
    for request in read_trace([str(traces.SAMPLE)]).requests[:CHATS]:
        body = {"messages": request.messages, "tools": request.tools, "tool_choice": "none", "max_tokens": 2}
        yield "/v1/chat/completions", {name: value for name, value in body.items() if value is not None}
    random = np.random.default_rng(11)
    for blocks in (1, 2, 3, 4, 2, 1):
        ids = random.integers(10, 5_000, blocks * served_model.BLOCK).tolist()
        for _ in range(3):
            yield "/v1/completions", {"prompt": ids, "max_tokens": 2}


@pytest.fixture(scope="module")
def log(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The capture."""
    folder = tmp_path_factory.mktemp("capture")
    output = folder / "capture.jsonl"
    command = served_model.serve_command(environment_folder(), model, "--enable-prompt-tokens-details")
    with started(parse_serve_line(command), UNIT, folder / "server.log") as process:

        async def ready() -> None:
            async with LiveClient(process.url) as client:
                await process.wait_until_ready(client, READY_TIMEOUT_S, lambda text: None)

        asyncio.run(ready())
        capture = start("capture", "--to", process.url, "--listen", "127.0.0.1:0", "-o", str(output))
        assert capture.stderr is not None
        url = next(word for word in capture.stderr.readline().split() if word.startswith("http"))
        for path, body in bodies():
            request = urllib.request.Request(
                url + path,
                json.dumps(body | {"model": str(model)}).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=120) as answer:
                answer.read()
        capture.send_signal(signal.SIGINT)
        capture.communicate(timeout=60)
    return output


def log_check(log: Path, model: Path, *options: str) -> dict[str, Any]:
    """The report's comparison under the right sizes and these options."""
    report = log.with_name("report.json")
    groups = f"mamba:{served_model.BLOCK}*3,full:{served_model.BLOCK}"
    code, _, errors = run(
        *("analyze", str(log), "--model", str(model), "--groups", groups, "--json", str(report), "--force"),
        *options,
        timeout=ANALYZE_S,
    )
    assert code == 0, errors
    return json.loads(report.read_text())


def test_every_request_agrees(log: Path, model: Path) -> None:
    check = log_check(log, model, "--engine-version", "0.32.0", "--match-unit", str(UNIT))["log_check"]
    requests = CHATS + 18
    for counts in (check["prompt_tokens"], check["cached_tokens"]):
        assert (counts["compared"], counts["agree"]) == (requests, requests), check
    assert check["cached_tokens"]["logged"] == check["cached_tokens"]["predicted"] > 0
    assert check["causes"] == []


def test_a_wrong_unit_is_named(log: Path, model: Path) -> None:
    report = log_check(log, model, "--engine-version", "0.32.0")
    (cause,) = report["log_check"]["causes"]
    assert cause["name"] == "match_unit"
    assert f"--match-unit {UNIT}" in cause["text"]
    assert report["recommendation"]["confidence"] != "high"


def test_a_wrong_release_is_named(log: Path, model: Path) -> None:
    report = log_check(log, model, "--engine-version", "0.30.0", "--match-unit", str(UNIT))
    (cause,) = report["log_check"]["causes"]
    assert cause["name"] == "release"
    assert "0.32" in cause["text"]


def test_a_wrong_template_is_named(log: Path, model: Path, tmp_path: Path) -> None:
    """Without the line that begins each message."""
    template = tmp_path / "other.jinja"
    written = (model / "chat_template.jinja").read_text()
    template.write_text(written.replace("<|turn|>", ""))
    assert template.read_text() != written
    report = log_check(
        log, model, "--engine-version", "0.32.0", "--match-unit", str(UNIT), "--chat-template", str(template)
    )
    assert report["log_check"]["causes"][0]["name"] == "template"
    assert report["recommendation"]["action"] == "cannot_help"
