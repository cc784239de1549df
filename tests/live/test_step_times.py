"""Step times of a real vLLM: measured in minutes, near what other prompts take, and right about the order of units."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest

from tests.live import served_model, traces
from tests.live.command_line import run
from tests.live.conftest import environment_folder

SAMPLE = str(traces.SAMPLE)
START_S = 400.0
MEDIAN_ERROR = 0.15


def command(model: Path) -> str:
    return served_model.serve_command(environment_folder(), model)


@pytest.fixture(scope="module")
def steps(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a measurement."""
    report = tmp_path_factory.mktemp("steps") / "steps.json"
    code, _, errors = run(
        *("validate", SAMPLE, "--serve", command(model), "--units", "16,64", "--measure-steps"),
        *("--json", str(report)),
        timeout=2 * START_S,
    )
    assert code == 0, errors
    assert "at most 250 prompts of random tokens" in errors
    return report


@pytest.mark.thorough
def test_held_out_prompts_take_what_was_predicted(steps: Path) -> None:
    report = json.loads(steps.read_text())
    cost = report["validation"]["step_cost"]
    assert cost["held_out"] == 10
    assert cost["median_error"] <= MEDIAN_ERROR
    assert report["step_times"]["source"] == "server"


@pytest.mark.thorough
def test_the_order_of_units_is_as_predicted(model: Path, steps: Path, tmp_path: Path) -> None:
    """Three units, there and back again. Two are ordered where their predicted times are further apart than
    predictions are off; the least and the most of the sample's are."""
    report = json.loads(steps.read_text())
    seconds = {row["unit"]: row["prefill_s"] for row in report["candidates"] if row["prefill_s"] is not None}
    served = tmp_path / "served.json"
    code, _, errors = run(
        *("validate", SAMPLE, "--serve", command(model), "--units", "16,64", "--runs", "4"),
        *("--step-times", str(steps), "--json", str(served)),
        timeout=6 * START_S,
    )
    assert code == 0, errors
    base, *others = json.loads(served.read_text())["validation"]["candidates"]
    measured = {base["unit"]: 0.0} | {row["unit"]: row["ttft_change"] for row in others}
    predicted = {unit: seconds[unit] / seconds[base["unit"]] - 1 for unit in measured}
    apart = [
        (fast, slow)
        for fast, slow in permutations(measured, 2)
        if predicted[slow] - predicted[fast] > report["validation"]["step_cost"]["mean_error"]
    ]
    assert apart, predicted
    assert all(measured[fast] < measured[slow] for fast, slow in apart), (predicted, measured)
