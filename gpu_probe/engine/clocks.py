"""Clocks: what time it is for the requests of a run, given what each step took.

- `model`: a step takes what a step-cost model says. Nothing is measured, so two runs are equal to the byte.
- `virtual`: a step takes what it took on this machine; idle gaps between arrivals are skipped.
- `wall`: the same, and gaps are waited for.

Knows seconds; nothing about requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from kvtune.analyzers.step_times import StepShape


class Clock(Protocol):
    """`now` in seconds since the run began. A step ends `step(...)` seconds after it could begin."""

    @property
    def now(self) -> float: ...

    def step(self, shape: StepShape, measured_s: float) -> float:
        """How long a step of this shape takes, which took `measured_s` seconds on this machine."""

    def spend(self, measured_s: float) -> None:
        """The host was busy between steps, in hashing for instance."""

    def wait_until(self, time_s: float) -> None:
        """Nothing happens before `time_s`."""


class ModelClock:
    """Time by a step-cost model."""

    def __init__(self, seconds: Callable[[StepShape], float]) -> None:
        self.now = 0.0
        self.seconds = seconds

    def step(self, shape: StepShape, measured_s: float) -> float:  # noqa: ARG002
        return self.seconds(shape)

    def spend(self, measured_s: float) -> None:
        """Not modelled: a machine's speed must not show."""

    def wait_until(self, time_s: float) -> None:
        self.now = max(self.now, time_s)


class VirtualClock:
    """Measured steps, skipped gaps."""

    def __init__(self) -> None:
        self.now = 0.0

    def step(self, shape: StepShape, measured_s: float) -> float:  # noqa: ARG002
        return measured_s

    def spend(self, measured_s: float) -> None:
        self.now += measured_s

    def wait_until(self, time_s: float) -> None:
        self.now = max(self.now, time_s)


class WallClock:
    """The machine's own time, gaps slept through. It begins at `start_s`, the first arrival."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._start = time.perf_counter() - start_s

    @property
    def now(self) -> float:
        return time.perf_counter() - self._start

    def step(self, shape: StepShape, measured_s: float) -> float:  # noqa: ARG002
        """A step has ended when it has run: time passes by itself."""
        return 0.0

    def spend(self, measured_s: float) -> None:
        """Time passes by itself."""

    def wait_until(self, time_s: float) -> None:
        time.sleep(max(0.0, time_s - self.now))
