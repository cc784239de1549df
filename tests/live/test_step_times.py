"""Step times of a real vLLM: measured in minutes, near what other prompts take, and right about the order of units."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
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
    """Prompts that share nothing, of 250 and 300 tokens with a block of 256: one and two steps, with unit 64 two and
    two, with unit 16 two and three. There and back again; differences below the noise are named as such."""
    trace, served = tmp_path / "trace.jsonl", tmp_path / "served.json"
    random = np.random.default_rng(5)
    trace.write_text(
        "".join(
            json.dumps({"prompt": random.integers(10, 5_000, length).tolist(), "max_tokens": 1}) + "\n"
            for length in (250, 300) * 24
        )
    )
    code, out, errors = run(
        *("validate", str(trace), "--serve", command(model), "--units", "16,64", "--runs", "4"),
        *("--requests", "48", "--step-times", str(steps), "--json", str(served)),
        timeout=6 * START_S,
    )
    assert code == 0, errors
    report = json.loads(served.read_text())
    predicted = {row["unit"]: row["prefill_s"] for row in report["candidates"]}
    base, *others = report["validation"]["candidates"]
    measured = {base["unit"]: 0.0} | {row["unit"]: row["ttft_change"] for row in others}
    assert sorted(measured, key=predicted.__getitem__) == [256, 64, 16]
    assert measured[256] < measured[64] < measured[16], (measured, out)
    assert all(row["ttft_change_ci95"] is not None and row["ttft_differs"] is not None for row in others)
