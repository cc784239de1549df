"""Exit codes, streams, one-line errors, and a help that loads nothing heavy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvtune import __version__
from kvtune.cli import app
from kvtune.cli.app import main
from kvtune.tokenization.errors import MissingDependencyError, NoUsableRequestError, UnusableInputError

_PACKAGE_FOLDER = str(Path(app.__file__).resolve().parents[1] / "build" / "links")
_ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([_PACKAGE_FOLDER, os.environ.get("PYTHONPATH", "")])
}


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that can import kvtune."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=_ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_loads_nothing_heavy() -> None:
    heavy = "numpy", "torch", "tokenizers", "tiktoken", "jinja2", "msgspec", "zstandard"
    script = (
        "import sys\nfrom kvtune.cli.app import main\nmain(['--help'])\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = python("-c", script)
    assert "analyze" in done.stdout
    assert done.stderr.strip() == "[]"


def test_help_answers_within_half_a_second_of_cpu() -> None:
    script = (
        "import time\nfrom kvtune.cli.app import main\nmain(['--help'])\n"
        "import sys\nprint(time.process_time(), file=sys.stderr)"
    )
    assert float(python("-c", script).stderr) < 0.5


def test_version(run) -> None:
    for arguments in (["--version"], ["report", "--version"]):
        done = run(*arguments)
        assert (done.code, done.out) == (0, f"kvtune {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reprot"], "Did you mean 'report'"),
        (["report"], "REPORT.json"),
        (["report", "x.json", "--bogus"], "--bogus"),
        (["report", "missing.json"], "missing.json: cannot be read"),
        (["analyze", "t.jsonl", "--max-num-seqs", "none"], "--max-num-seqs"),
        (["analyze", "t.jsonl", "--seed", "-1"], "--seed"),
        (["analyze", "t.jsonl", "--replicas", str(10**30)], "--replicas"),
        (["analyze", "t.jsonl", "--bin-width", str(10**30)], "--bin-width"),
        (["analyze", "t.jsonl", "--workers", str(2**63)], "--workers"),
        (["analyze", "t.jsonl", "--dcp", "9999"], "--dcp"),
    ],
)
def test_unusable_arguments_are_one_line_and_exit_2(run, arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert words in done.err
    assert done.err.startswith("kvtune: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnusableInputError("no", where="a:1"), 2),
        (NoUsableRequestError("empty"), 3),
        (MissingDependencyError("no GPU"), 4),
        (KeyboardInterrupt(), 130),
        (RuntimeError("secret prompt text"), 70),
        (PermissionError(13, "Permission denied", "out.json"), 2),
    ],
)
def test_each_kind_of_error_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int
) -> None:
    def fail(_path: str) -> None:
        raise error

    monkeypatch.setattr("kvtune.cli.report.read_report", fail)
    assert main(["report", "x.json"]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == (0 if code == 130 else 1)
    assert "Traceback" not in printed.err
    assert "secret" not in printed.err
    if code == 70:
        assert "please report" in printed.err


def test_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_path: str) -> None:
        raise RuntimeError("inside")

    monkeypatch.setattr("kvtune.cli.report.read_report", fail)
    assert main(["report", "x.json", "--debug"]) == 70
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_exits_with_130_and_says_nothing(number: int) -> None:
    command = [sys.executable, "-m", "kvtune", "analyze", "-", "--groups", "full:16"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_ENVIRONMENT
    )
    assert process.stdin is not None
    process.stdin.write(
        b'{"prompt_token_ids": [1, 2, 3]}\n' * 10_000
    )  # more than a pipe holds: it is being read
    process.stdin.flush()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_a_reader_that_closes_early_is_no_error(stored: Path) -> None:
    script = (
        "import subprocess, sys\n"
        f"p = subprocess.Popen([sys.executable, '-m', 'kvtune', 'report', {str(stored)!r}],"
        " stdout=subprocess.PIPE, stderr=subprocess.PIPE)\n"
        "p.stdout.close()\n"
        "print(p.wait(), p.stderr.read())"
    )
    assert python("-c", script).stdout.split() == ["0", "b''"]


def test_no_colour_away_from_a_terminal(run, stored: Path) -> None:
    assert "\x1b" not in run("report", str(stored)).out


def test_without_arguments_there_is_help(run) -> None:
    assert run() == run("--help")
    assert run().out.startswith("Usage: kvtune")


def test_a_terminal_without_our_characters_still_gets_the_numbers(stored: Path) -> None:
    done = python("-m", "kvtune", "report", str(stored), PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "6,100,000" in done.stdout


def test_a_name_that_is_not_utf8_is_refused_by_one_line(run) -> None:
    done = run("analyze", "\udcff.jsonl", "--groups", "full:16")
    assert (done.code, done.out) == (2, "")
    assert "UTF-8" in done.err


def test_completion_names_the_commands() -> None:
    done = python("-m", "kvtune", _KVTUNE_COMPLETE="complete_bash", COMP_WORDS="kvtune com", COMP_CWORD="1")
    assert "compare" in done.stdout
