"""Clocks: what time it is for the requests of a run, given what each step took.

- `model`: a step takes what a step-cost model says. Nothing is measured, so two runs are equal to the byte.
- `virtual`: a step takes what it took on this machine; idle gaps between arrivals are skipped.
- `wall`: the same, and gaps are waited for.

Knows seconds; nothing about requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class StepShape:
    """What a step is, as far as its time is concerned. Counts of tokens and sequences.

    Attributes:
        prefill_tokens, prefill_sequences: of chunks that begin inside the prompt.
        attended_pairs: sum over their tokens of the positions before and at them.
        decode_tokens: of chunks behind the prompt. decode_context: the sum of the positions where these begin.
    """

    prefill_tokens: int
    prefill_sequences: int
    attended_pairs: int
    decode_tokens: int
    decode_context: int

    def features(self) -> tuple[float, ...]:
        """1 and the fields, in the order of `cost.FEATURES`."""
        return (
            1.0,
            float(self.prefill_tokens),
            float(self.attended_pairs),
            float(self.decode_tokens),
            float(self.decode_context),
            float(self.prefill_sequences),
        )


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
