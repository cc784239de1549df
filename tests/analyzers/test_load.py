"""Replays under load, worked by hand and against the bundled engine's model clock."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvtune.analyzers.decision import Objective
from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.load import load_points, telling_units
from kvtune.analyzers.replays import ReplayTask
from kvtune.analyzers.report import LoadPoint
from kvtune.analyzers.shared import find_shared_prefixes
from kvtune.analyzers.step_times import LinearStepTimes, StepTimesInfo
from kvtune.analyzers.sweep import no_progress, replay_input
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.trace import TokenTrace
from tests.analyzers.traces import trace_of
from tests.gpu_probe.tiny_model import CONFIG

ENGINE = EngineConfig(groups=parse_groups("full:16"))
A_SECOND_A_STEP = LinearStepTimes((1.0, 0.0, 0.0, 0.0, 0.0, 0.0))
TIME = Objective("gpu-time", 128, token_s=1e-3)


def points(
    trace: TokenTrace, times: LinearStepTimes, *multipliers: float, engine: EngineConfig = ENGINE
) -> tuple[LoadPoint, ...]:
    task = ReplayTask(replay_input(trace, find_shared_prefixes(trace, "none")), step_times=times)
    return load_points(
        {16: engine},
        task,
        current_unit=16,
        objective=TIME,
        multipliers=multipliers,
        workers=1,
        progress=no_progress,
    )


def test_a_request_an_hour_is_served_alone_and_the_gpu_idles() -> None:
    """One token each: one step of a second, 3,600 s apart; in two hours and a second three steps run."""
    trace = trace_of([[1, 2], [3, 4], [5, 6]], arrival=np.array([0.0, 3600.0, 7200.0]))
    [point] = points(trace, A_SECOND_A_STEP, 1.0)
    [row] = point.candidates
    assert (row.ttft_s.p50, row.e2e_s.p50) == (1.0, 1.0)
    assert row.busy == pytest.approx(3 / 7201)
    assert point.best_unit == 16


def test_a_multiplier_brings_arrivals_closer_together() -> None:
    """7,200 times as fast they arrive within a second: the second waits for the step that is planned ahead of it."""
    trace = trace_of([[1, 2], [3, 4], [5, 6]], arrival=np.array([100.0, 3700.0, 7300.0]))
    slow, fast = points(trace, A_SECOND_A_STEP, 1.0, 7200.0)
    assert slow.candidates[0].ttft_s.p99 == 1.0
    assert fast.candidates[0].ttft_s.p99 > 1.0
    assert fast.busy == pytest.approx(1.0)


def test_arrivals_without_times_cannot_be_scaled() -> None:
    with pytest.raises(UnusableInputError, match="no arrival times to scale"):
        points(trace_of([[1, 2], [3, 4]]), A_SECOND_A_STEP, 2.0)
    together = trace_of([[1, 2], [3, 4]], arrival=np.array([5.0, 5.0]))
    with pytest.raises(UnusableInputError, match="--load"):
        points(together, A_SECOND_A_STEP, 2.0)


def test_at_most_eight_units_the_named_ones_first() -> None:
    units = [1056, 528, 352, 264, 176, 132, 96, 88, 66, 48]
    assert telling_units(units, [48, 1056, 48, 7]) == [1056, 528, 352, 264, 176, 132, 96, 48]


def test_the_bundled_engine_gives_the_same_latencies_under_the_model_clock(tmp_path: Path) -> None:
    """The same step times, twelve requests that overlap, three tokens each: TTFT and end-to-end latency of both."""
    pytest.importorskip("torch")
    from kvtune.gpu_probe.validate import ProbeOptions, validate_on_engine

    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, 400, int(length)).tolist() for length in rng.integers(70, 200, 12)]
    trace = replace(
        trace_of(prompts, arrival=np.arange(12) * 0.004), output_tokens=np.full(12, 3, dtype=np.int64)
    )
    engine = EngineConfig(groups=parse_groups("mamba:64,full:64"), max_num_batched_tokens=256)
    times = LinearStepTimes((2e-3, 2e-5, 1e-9, 1e-4, 1e-8, 4e-4), StepTimesInfo(source="engine"))
    options = ProbeOptions(
        model=tmp_path, outputs="length", arrivals="trace", step_times=times, priced_by="v.json"
    )
    [executed] = validate_on_engine(
        trace, engine, [None], options, lambda stage, done, total: None
    ).validation.candidates
    task = ReplayTask(replay_input(trace, find_shared_prefixes(trace, "length")), step_times=times)
    [point] = load_points(
        {64: engine},
        task,
        current_unit=64,
        objective=TIME,
        multipliers=[1.0],
        workers=1,
        progress=no_progress,
    )
    [row] = point.candidates
    assert executed.ttft_s is not None and executed.e2e_s is not None
    assert row.ttft_s.p50 == pytest.approx(executed.ttft_s.p50, rel=1e-9)
    assert row.ttft_s.p99 == pytest.approx(executed.ttft_s.p99, rel=1e-9)
    assert row.e2e_s.p50 == pytest.approx(executed.e2e_s.p50, rel=1e-9)
