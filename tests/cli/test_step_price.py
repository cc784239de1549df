"""--step-cost-tokens as a number or a report: what each sets, every refusal, and the way there and back."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from kvtune.analyzers.report import Report
from kvtune.analyzers.step_times import ASSUMED, LinearStepTimes, StepTimesError, StepTimesInfo
from kvtune.analyzers.validation import Validation
from kvtune.cli.app import main
from kvtune.cli.documents import encode_document
from kvtune.cli.step_price import step_price
from tests.analyzers.fits import FITTED as WHOLE_MODEL

SAMPLES = Path(__file__).parents[2] / "samples"
TRACE = str(SAMPLES / "functions.jsonl.gz")

FITTED = msgspec.structs.replace(WHOLE_MODEL, step_cost_tokens=119.6, rung="L2 real weights")


def stored(report: Report, path: Path, **fields: object) -> str:
    """The synthetic report with a fit in its validation."""
    assert report.validation is not None
    fitted = msgspec.structs.replace(FITTED, **fields)
    validation: Validation = msgspec.structs.replace(report.validation, step_cost=fitted)
    path.write_bytes(encode_document(msgspec.structs.replace(report, validation=validation)))
    return str(path)


def test_a_number_is_the_price_and_nothing_else() -> None:
    for text, tokens in (("0", 0), ("128", 128), ("1000000", 1_000_000)):
        price = step_price(text)
        assert (price.tokens, price.times, price.source) == (tokens, ASSUMED, None)
        assert price.caveats(10**6) == ()
        price.check(())


def test_a_report_gives_price_and_seconds(report: Report, tmp_path: Path) -> None:
    price = step_price(stored(report, tmp_path / "v.json"))
    assert price.tokens == 120
    assert price.times.coefficients == (2e-3, 2e-5, 1e-9, 1e-5, 1e-9, 4e-4)
    assert price.groups == (("mamba", 3), ("full", 1), ("sliding_window", 1))
    (caveat,) = price.caveats(9_000)
    assert "v.json measured: a card, L2 real weights, one step like 120 prefilled tokens" in caveat
    assert caveat.endswith("contexts beyond 4,096 tokens were not timed")


@pytest.mark.parametrize("text", ["-1", "many", "", "1.5", "nothere.json"])
def test_neither_number_nor_file(run, text: str) -> None:
    done = run("analyze", TRACE, f"--step-cost-tokens={text}")
    assert done.code == 2
    assert done.err.startswith("kvtune: --step-cost-tokens: is unusable (found ")
    assert done.err.count("\n") == 1


def test_refusals_are_one_line_and_exit_with_2(run, report: Report, tmp_path: Path) -> None:
    cases = {
        "error.json": (
            {"mean_error": 0.17},
            "found held-out error: mean 17.0%, p90 13.0%",
        ),
        "layers.json": ({"covers": "layers"}, "is not that of the server's model"),
        "model.json": (
            {},
            "the fitted step cost is another model's (found mamba*3, full*1, sliding_window*1, wanted",
        ),
    }
    for name, (fields, words) in cases.items():
        path = stored(report, tmp_path / name, **fields)
        for command in (("analyze", TRACE), ("explain", TRACE, "--request", "1"), ("validate", TRACE)):
            done = run(*command, "--quiet", "--step-cost-tokens", path)
            assert done.code == 2
            assert words in done.err
            assert done.err.startswith(f"kvtune: {path}: ")
            assert done.err.count("\n") == 1
            assert not done.out
    plain = tmp_path / "plain.json"
    plain.write_bytes(encode_document(report))
    done = run("analyze", TRACE, "--step-cost-tokens", str(plain))
    assert "holds no fitted step cost; make one with `kvtune validate --clock virtual" in done.err
    broken = tmp_path / "broken.json"
    broken.write_text('{"schema": "kvtune.report/1"}')
    assert "is no kvtune.report/1 document" in run("analyze", TRACE, "--step-cost-tokens", str(broken)).err


def test_the_path_in_a_settings_file_is_seen_from_there(monkeypatch, report: Report, tmp_path: Path) -> None:
    from typer.main import get_command

    from kvtune.cli.app import app
    from kvtune.cli.settings import load_settings, long_options

    stored(report, tmp_path / "v.json")
    settings = tmp_path / "kvtune.toml"
    known = long_options(get_command(app).commands["analyze"])
    settings.write_text('step-cost-tokens = "v.json"\n')
    assert load_settings(settings, known) == {"step-cost-tokens": str(tmp_path / "v.json")}
    settings.write_text("step-cost-tokens = 64\n")
    assert load_settings(settings, known) == {"step-cost-tokens": "64"}


def test_from_a_measurement_to_an_analysis(monkeypatch, tmp_path: Path, capsys) -> None:
    """validate --clock virtual, then analyze and validate with what it found; errors are this machine's, so that
    the limits are lifted for the length of the test."""
    pytest.importorskip("torch")
    from kvtune.gpu_probe.engine.calibrate import Design

    grid = [[(0, count)] for count in (16, 64, 256, 512)] + [[(256, 1)] * count for count in range(1, 10)]
    small = Design(grid, [[(0, 128)], [(256, 1)] * 3])
    monkeypatch.setattr(Design, "reaching", classmethod(lambda cls, longest: small))
    known = LinearStepTimes(  # what this machine's clock says is not what is tried here
        (2e-3, 2e-5, 1e-9, 1e-5, 1e-9, 4e-4),
        StepTimesInfo(source="engine", error=StepTimesError(mean=0.05, p90=0.1)),
        held_out=2,
    )
    monkeypatch.setattr("kvtune.gpu_probe.engine.calibrate.fit_step_times", lambda *_: known)
    measured, priced, again = (str(tmp_path / name) for name in ("v.json", "a.json", "w.json"))
    usual = ("--quiet", "--units", "176", "--force")
    twice = (TRACE, "--requests", "2", "--slo")
    seen = ("--json", measured, "--md", "-")
    assert main(["validate", *twice, "ttft=60", "--clock", "virtual", "--runs", "1", *seen, *usual]) == 0
    shown = capsys.readouterr().out
    assert "| within SLO | SLO up to |" in shown
    assert "each rate one run on the device, at most 10 runs a unit; to within 15%, up to 64×." in shown
    found = json.loads(Path(measured).read_bytes())["validation"]
    assert found["rate_search"]["method"] == "executed"
    assert [row["largest_rate"] for row in found["candidates"]] == [64.0, 64.0]
    cost = found["step_cost"]
    assert (cost["covers"], cost["held_out"]) == ("model", 2)

    arguments = ["analyze", TRACE, "--arrivals", "trace", "--step-cost-tokens", measured, "--json", priced]
    assert main([*arguments, *usual]) == 0
    analysis = json.loads(Path(priced).read_bytes())
    assert analysis["replay"]["step_cost_tokens"] == round(cost["step_cost_tokens"])
    assert any("steps cost what" in text for text in analysis["recommendation"]["caveats"])
    assert f"--step-cost-tokens {measured}" in analysis["command"]
    row = next(row for row in analysis["candidates"] if row["unit"] == 176)
    price = round(cost["step_cost_tokens"])
    assert row["net_gain_tokens"] == row["gain_tokens"] - price * row["extra_prefill_steps"]

    # The model clock then takes the measured machine's times.
    assert main(["validate", *twice, "ttft=60", "--step-cost-tokens", measured, "--json", again, *usual]) == 0
    capsys.readouterr()
    validation = json.loads(Path(again).read_bytes())["validation"]
    assert any(f"the machine of {measured}" in note for note in validation["notes"])
    assert validation["rate_search"]["method"] == "rehearsed"
