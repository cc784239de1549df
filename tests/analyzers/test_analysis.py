"""The choice on whole traces: what the evidence is worth."""

from __future__ import annotations

import numpy as np

from kvtune.analyzers.analysis import Analysis, evidence_of, find
from kvtune.analyzers.decision import Objective
from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.options import AnalyzeOptions
from kvtune.analyzers.step_times import StepTimesInfo
from kvtune.analyzers.step_times.linear import LinearStepTimes
from kvtune.analyzers.sweep import no_progress
from tests.analyzers.traces import trace_of


def found_on(prompts: list[list[int]], groups: str = "mamba:1600*3,full:1600") -> Analysis:
    config = EngineConfig(groups=parse_groups(groups))
    options = AnalyzeOptions(units=(10, 400), step_cost_tokens=128)
    return find(trace_of(prompts), config, options, no_progress)


def test_one_prompt_sent_forty_times_is_of_low_confidence() -> None:
    """data/cases/inputs/k071: one distinct prompt in 40 requests was once "set 10, high"."""
    found = found_on([list(range(2000))] * 40)
    assert found.choice.action == "set"
    assert found.choice.confidence == "low"
    assert evidence_of(found.trace, found.shared, found.sessions).distinct_prompts == 1
    assert "The trace holds only 1 different prompt." in found.choice.doubts
    low, high = found.choice.interval
    assert low < high  # one conversation has no interval without width


def test_prompts_that_extend_one_another_are_one_conversation() -> None:
    prompts = [list(range(1000 + 50 * turn)) for turn in range(12)]
    found = found_on(prompts)
    assert np.unique(found.sessions).tolist() == [0]
    assert evidence_of(found.trace, found.shared, found.sessions).distinct_prompts == 12


def test_optimizations_and_pools_price_steps_as_the_step_times_do() -> None:
    """A step takes 1 s and 10 ms a token: 100 tokens a step. What was given, or nothing known, stays as it is."""
    times = LinearStepTimes((1.0, 0.01, 0.0, 0.0, 0.0, 0.0), StepTimesInfo(source="server"))
    assert AnalyzeOptions(step_times=times).decides_in_tokens() == Objective("overhead", 100)
    assert AnalyzeOptions(step_times=times, step_cost_tokens=7).decides_in_tokens() == Objective(
        "overhead", 7
    )
    assert AnalyzeOptions().decides_in_tokens() == Objective("worst-case", 128)
