"""`StepTimes`: the interface of everything that knows how long steps take."""

from __future__ import annotations

from typing import Protocol

from kvtune.analyzers.step_times.info import StepTimesInfo
from kvtune.analyzers.step_times.shape import StepShape
from kvtune.tokenization.trace import Float64, Int64


class StepTimes(Protocol):
    """Seconds of steps. Values are picklable: replays run in other processes."""

    @property
    def info(self) -> StepTimesInfo:
        """Where they come from, and how wrong they may be."""

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step, prefill beside decode; 0 for a step that computes nothing."""

    def prefill_s(self, start: Int64, tokens: Int64) -> Float64:
        """float64[N]: seconds of N steps that hold one chunk each, `tokens[i]` tokens after `start[i]` others."""

    def decode_s(self, steps: int, requests: int, context: int) -> float:
        """Seconds of `steps` steps that decode `requests` requests, whose positions sum to `context` at first."""
