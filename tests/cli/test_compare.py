"""`kvtune compare`: what moved, and the gate."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from kvtune.analyzers.compare import compare_reports
from kvtune.analyzers.document import encode_report
from kvtune.analyzers.report import Losses, Report

replace = msgspec.structs.replace


@pytest.fixture
def worse(report: Report) -> Report:
    """The sample with 1,120,000 tokens evicted today: 4,480,000 hit instead of 5,600,000, a fifth less."""
    current = Losses(
        unit=528, hit_tokens=4_480_000, granularity=304_270, no_recurrent_state=518_464, evicted=1_120_000
    )
    family = replace(report.families[0], engine_hit_tokens={528: 4_480_000, 96: 6_100_000})
    return replace(report, losses=replace(report.losses, current=current), families=(family,), levers=())


def test_rates_and_what_is_lost(report: Report, worse: Report) -> None:
    found = compare_reports(report, worse)
    assert found.worse_fraction == pytest.approx(0.2)
    assert found.base.token_hit_rate == pytest.approx(5_600_000 / 6_848_473)
    assert found.new.best_token_hit_rate == pytest.approx(6_100_000 / 6_848_473)
    assert found.same_trace
    evicted = next(loss for loss in found.losses if loss.limit == "evicted")
    assert (evicted.base_rate, evicted.new_rate) == (0, pytest.approx(1_120_000 / 6_848_473))
    family = found.families[0]
    assert family.new_token_hit_rate == pytest.approx(4_480_000 / 6_848_473)
    assert (found.levers[0].base_gain_tokens, found.levers[0].new_gain_tokens) == (3_168, None)


def test_families_and_levers_of_either_side_are_listed(report: Report) -> None:
    other = replace(report.families[0], name="other", prompt_tokens=10, engine_hit_tokens={528: 5})
    found = compare_reports(replace(report, families=()), replace(report, families=(other,), levers=()))
    assert [(one.name, one.base_token_hit_rate, one.new_token_hit_rate) for one in found.families] == [
        ("other", None, 0.5)
    ]
    assert [lever.new_gain_tokens for lever in found.levers] == [None]


@pytest.mark.parametrize(("percent", "code"), [("19", 1), ("21", 0)])
def test_the_gate(run, stored: Path, tmp_path: Path, worse: Report, percent: str, code: int) -> None:
    (tmp_path / "new.json").write_bytes(encode_report(worse))
    done = run("compare", str(stored), "new.json", "--fail-if-worse", percent)
    assert done.code == code
    assert done.out.startswith("The token hit rate falls from 81.8% to 65.4%")
    assert bool(done.err) == (code == 1)


def test_better_is_never_worse(run, stored: Path, tmp_path: Path, worse: Report) -> None:
    (tmp_path / "base.json").write_bytes(encode_report(worse))
    done = run("compare", "base.json", str(stored), "--fail-if-worse", "0")
    assert done.code == 0
    assert "rises" in done.out


def test_settings_that_differ_are_named(run, tmp_path: Path, report: Report, stored: Path) -> None:
    engine = replace(report.engine, num_blocks=27)
    (tmp_path / "small.json").write_bytes(encode_report(replace(report, engine=engine)))
    text = run("compare", str(stored), "small.json").out
    assert "The settings differ" in text
    assert "  pool     unlimited  27 blocks\n" in text
    assert "The settings differ" not in run("compare", str(stored), str(stored)).out


def test_json_alone_on_stdout(run, stored: Path) -> None:
    document = json.loads(run("compare", str(stored), str(stored), "--json", "-").out)
    assert document["schema"] == "kvtune.compare/1"
    assert document["worse_fraction"] == 0


def test_reports_without_hits_can_be_compared(report: Report) -> None:
    nothing = Losses(unit=528, hit_tokens=0)
    empty = replace(report, losses=replace(report.losses, current=nothing))
    assert compare_reports(empty, empty).worse_fraction == 0


def test_a_file_too_large_for_a_report_is_not_read(
    run, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtune.cli.report.MAX_REPORT_BYTES", 100)
    done = run("report", str(stored))
    assert (done.code, done.out) == (2, "")
    assert "report.json: is too large for a report" in done.err
