"""`kvtune validate --serve` from the outside: verdict, exit code, one clear line, and nothing left running."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from kvtune.tokenization.encode import encode_trace
from kvtune.tokenization.encoding.open_encoder import open_prompt_encoder
from tests.live import served_model, traces
from tests.live.command_line import run, start
from tests.live.conftest import environment_folder, processes_of

SAMPLE = str(traces.SAMPLE)
START_S = 400.0


def command(model: Path, *more: str) -> str:
    return served_model.serve_command(environment_folder(), model, *more)


def only_line(errors: str) -> str:
    """The last line, which is the error; what stands before are notes."""
    return errors.strip().splitlines()[-1]


@pytest.mark.thorough
def test_the_candidates_agree_with_the_prediction(model: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    code, _, errors = run(
        *("validate", SAMPLE, "--serve", command(model), "--units", "16", "--runs", "1"),
        *("--log-dir", str(tmp_path / "logs"), "--json", str(report)),
        timeout=3 * START_S,
    )
    assert code == 0, errors
    assert "does what the profile of vLLM 0.32.0 says: 194 of 194 requests" in errors
    assert "--prefix-match-unit 16" in errors
    found = json.loads(report.read_text())
    assert found["engine"]["source"] == "startup-log"
    assert found["engine"]["num_blocks"] == 16_384
    validation = found["validation"]
    assert (validation["rung"], validation["agrees"], validation["order"]) == ("L3", True, "unset 16")
    assert [row["unit"] for row in validation["candidates"]] == [256, 16]
    for row in validation["candidates"]:
        assert row["matched_tokens"] == row["predicted_tokens"] > 0
        assert row["ttft_s"]["p50"] > 0
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["01-unset.log", "02-16.log"]
    assert processes_of(environment_folder()) == []


@pytest.mark.thorough
def test_another_template_is_named_by_its_first_token(model: Path, tmp_path: Path) -> None:
    template = (model / "chat_template.jinja").read_text()
    other = tmp_path / "other.jinja"
    other.write_text(template.replace("('user' if", "('person' if"))
    assert other.read_text() != template
    first = traces.airline().requests[0]
    ours, theirs = (
        encode_trace([first], open_prompt_encoder(model=traces.SAMPLE_MODEL, chat_template=template))[
            0
        ].prompt(0)
        for template in (None, other.read_text())
    )
    position = next(
        place for place, (mine, other) in enumerate(zip(ours, theirs, strict=False)) if mine != other
    )
    report = tmp_path / "report.json"
    code, _, errors = run(
        *(
            "validate",
            SAMPLE,
            "--requests",
            "3",
            "--as-chat",
            "--units",
            "16",
            "--runs",
            "1",
            "--json",
            str(report),
        ),
        *("--serve", command(model, "--chat-template", str(other), "--prefix-match-unit", "16")),
        timeout=3 * START_S,
    )
    assert code == 1, errors
    assert "makes other tokens of the same chats; with its own tokens, " in errors
    difference = json.loads(report.read_text())["validation"]["differences"][0]
    assert difference == (
        f"request {first.id} is other tokens on the server: at position {position} (template) "
        f"token {ours[position]} here, token {theirs[position]} there; "
        "the chat template differs: give the server's own with --chat-template"
    )


def test_a_server_that_dies_while_loading(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    served_model.write_model(broken, traces.SAMPLE_MODEL)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(
        json.dumps(config | {"model_type": "no_such_model", "architectures": ["None"]})
    )
    code, out, errors = run(
        *("validate", SAMPLE, "--model", str(traces.SAMPLE_MODEL), "--serve", command(broken)),
        *("--log-dir", str(tmp_path / "logs")),
        timeout=START_S,
    )
    line = only_line(errors)
    assert (code, out) == (4, "")
    assert "the server died while loading (exit code 1)" in line
    assert "no_such_model" in line
    assert str(tmp_path / "logs" / "01-unset.log") in line
    assert (tmp_path / "logs" / "01-unset.log").stat().st_size > 0
    assert processes_of(environment_folder()) == []


def test_a_flag_that_the_server_does_not_know(model: Path, tmp_path: Path) -> None:
    code, _, errors = run(
        *("validate", SAMPLE, "--serve", command(model, "--no-such-flag"), "--log-dir", str(tmp_path)),
        timeout=START_S,
    )
    assert code == 4
    assert "died while loading (exit code 2)" in only_line(errors)
    assert "--no-such-flag" in only_line(errors)


def test_a_server_that_is_never_ready(model: Path, tmp_path: Path) -> None:
    code, _, errors = run(
        *("validate", SAMPLE, "--serve", command(model), "--ready-timeout", "3", "--log-dir", str(tmp_path)),
        timeout=START_S,
    )
    assert code == 4
    assert "was not ready after 3 s" in only_line(errors)
    assert "--ready-timeout" in only_line(errors)
    assert str(tmp_path / "01-unset.log") in only_line(errors)
    assert processes_of(environment_folder()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_running_after_an_interrupt(
    model: Path, tmp_path: Path, number: signal.Signals
) -> None:
    process = start("validate", SAMPLE, "--serve", command(model), "--log-dir", str(tmp_path))
    try:
        wait_for(lambda: len(processes_of(environment_folder())) > 0, 60)
        time.sleep(3)  # into the loading, with processes of its own
        process.send_signal(number)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == {signal.SIGKILL: -signal.SIGKILL}.get(number, 130)
    wait_for(lambda: processes_of(environment_folder()) == [], 20)


def wait_for(condition: object, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.1)
