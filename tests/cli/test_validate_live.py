"""`kvtune validate` with `--serve` and `--endpoint`, against a scripted server: exit codes, streams and the report."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from kvtune.cli.app import main
from tests.gpu_probe.live.scripted_server import GROUPS_SPEC, Script, running
from tests.gpu_probe.live.test_endpoint import trace as six_prompts

PROGRAM = f"{sys.executable} -m tests.gpu_probe.live.scripted_program serve m"


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Six prompts as token ids, a second apart."""
    prompts = six_prompts()
    file = tmp_path / "requests.jsonl"
    file.write_text(
        "".join(
            json.dumps(
                {"prompt_token_ids": prompts.prompt(index).tolist(), "timestamp": 1_700_000_000 + index}
            )
            + "\n"
            for index in range(len(prompts))
        )
    )
    return str(file)


def test_serving_every_candidate(log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    code = main(
        [
            *("validate", log, "--groups", GROUPS_SPEC, "--serve", PROGRAM, "--units", "16", "--runs", "1"),
            *("--json", str(report), "--log-dir", str(tmp_path / "logs")),
        ]
    )
    errors = capsys.readouterr().err
    assert code == 0, errors
    found = json.loads(report.read_text())
    assert found["validation"]["order"] == "unset 16"
    assert found["validation"]["agrees"]
    assert found["engine"]["version"] == "0.32.0"
    assert found["engine"]["num_blocks"] == 4_096
    assert found["engine"]["source"] == "startup-log"
    assert errors.count("--enable-prompt-tokens-details") == 2
    assert "12 of 12 requests hit exactly what was predicted" in errors


def test_the_command_in_the_report_serves_again_and_holds_no_secret(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    line = f"VLLM_API_KEY=hunter2 X=1 {PROGRAM} --prefix-match-unit 16"
    asked = ("--groups", GROUPS_SPEC, "--serve", line, "--units", "16", "--runs", "1", "--requests", "3")
    assert main(["validate", log, *asked, "--ready-timeout", "60", "--json", str(first)]) == 0
    document = json.loads(first.read_text())
    words = shlex.split(document["command"])
    assert words[:3] == ["kvtune", "validate", log]
    assert words[words.index("--serve") + 1] == f"X=1 {PROGRAM} --prefix-match-unit 16"
    assert words[-4:] == ["--requests", "3", "--runs", "1"]
    assert "hunter2" not in first.read_text()
    assert main([*words[1:], "--json", str(second)]) == 0
    capsys.readouterr()
    again = json.loads(second.read_text())
    assert again["command"] == document["command"]
    for validated, repeated in zip(
        document["validation"]["candidates"], again["validation"]["candidates"], strict=True
    ):
        assert (validated["unit"], validated["matched_tokens"]) == (
            repeated["unit"],
            repeated["matched_tokens"],
        )


def test_a_server_that_does_something_else(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"{PROGRAM} --ignore-unit --prefix-match-unit 16"
    code = main(
        [
            *("validate", log, "--groups", GROUPS_SPEC, "--serve", line, "--units", "16", "--runs", "1"),
            *("--log-dir", str(tmp_path)),
        ]
    )
    printed = capsys.readouterr()
    assert code == 1
    assert "does not do what the profile of vLLM 0.32.0 says" in printed.err
    assert "the flag has no effect" in " ".join(printed.out.split())


def test_a_running_server(log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(Script(api_key="right")) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVTUNE_API_KEY", "right")
        code = main(
            [
                *(
                    "validate",
                    log,
                    "--groups",
                    GROUPS_SPEC,
                    "--endpoint",
                    server.url,
                    "--units",
                    "16",
                    "--runs",
                    "1",
                ),
                *("--requests", "4", "--json", "-"),
            ]
        )
    printed = capsys.readouterr()
    assert code == 0, printed.err
    validation = json.loads(printed.out)["validation"]
    assert (validation["order"], validation["requests"]) == ("16", 4)
    assert validation["candidates"][0]["matched_tokens"] == 128 + 176


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--endpoint", "http://127.0.0.1:9"), "the server does not answer"),
        (("--serve", "no-such-program serve m"), "the server's program cannot be started"),
        (("--serve", f"{PROGRAM} --no-such-flag"), "died while loading (exit code 2)"),
    ],
)
def test_no_server_is_one_line_and_exit_code_4(
    log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, str], said: str
) -> None:
    code = main(["validate", log, "--groups", GROUPS_SPEC, *arguments, "--log-dir", str(tmp_path)])
    printed = capsys.readouterr()
    assert code == 4
    assert printed.out == ""
    assert said in printed.err.strip().splitlines()[-1]
