"""The command that gives the same report, when it was made, and what it cost."""

from __future__ import annotations

import shlex
import time

import pytest

from kvtune.analyzers.report import Report
from kvtune.cli.analysis_options import EngineOptions, InputOptions, ModelOptions, ReplayOptions
from kvtune.cli.measuring import Stopwatch, created_now
from kvtune.cli.progress import StageProgress
from kvtune.cli.reproduce import command_line
from kvtune.tokenization.errors import UnusableInputError


def test_only_what_decides_the_numbers_is_named() -> None:
    line = command_line(
        "analyze",
        ["my trace.jsonl"],
        ModelOptions(model="tiny"),
        EngineOptions(match_unit="96", no_prefix_caching=True),
        ReplayOptions(step_cost_tokens="64"),
        InputOptions(workers=2, strict=True),
    )
    assert shlex.split(line) == [
        *("kvtune", "analyze", "my trace.jsonl", "--model", "tiny"),
        *("--match-unit", "96", "--no-prefix-caching", "--step-cost-tokens", "64"),
    ]


def test_the_date_can_be_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert created_now() == "1970-01-02T00:00:00Z"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(UnusableInputError, match="SOURCE_DATE_EPOCH"):
        created_now()


def test_the_stopwatch_fills_in_the_costs_and_leaves_the_rest(report: Report) -> None:
    watch = Stopwatch()
    until = time.process_time() + 0.05  # the system counts in hundredths
    while time.process_time() < until:
        pass
    measured = watch.complete(report).measured
    assert 0 < measured.wall_s < 60
    assert 0 < measured.cpu_s < 60
    assert measured.peak_bytes > 10**7
    assert measured.hash_cpu_s == report.measured.hash_cpu_s
    assert measured.created == report.measured.created


def shown(capsys: pytest.CaptureFixture[str], *, quiet: bool = False) -> str:
    """What two steps of one stage put on stderr."""
    with StageProgress(quiet=quiet) as progress:
        progress("replay", 1, 2)
        progress("replay", 2, 2)
    return capsys.readouterr().err


def test_progress_is_shown_for_long_work_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert shown(capsys) == ""
    monkeypatch.setattr("kvtune.cli.progress.PATIENCE_S", 0.0)
    assert "replay" in shown(capsys)
    assert shown(capsys, quiet=True) == ""
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(capsys) == ""


def test_progress_keeps_silent_away_from_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtune.cli.progress.PATIENCE_S", 0.0)
    assert shown(capsys) == ""
