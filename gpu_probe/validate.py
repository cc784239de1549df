"""The best candidates executed on the bundled engine, and whether they did what was predicted: the way in.

Knows what can be asked for and what comes back; torch is imported once a device was found, and not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.options import Arrivals
from kvtune.analyzers.shared import Outputs
from kvtune.analyzers.step_times import ASSUMED, StepTimes
from kvtune.analyzers.validation import Validation
from kvtune.tokenization.trace import TokenTrace

DeviceName = Literal["cpu", "cuda"]
ClockName = Literal["model", "virtual", "wall"]
Progress = Callable[[str, int, int], None]
"""A stage's name, steps done and steps in all."""


@dataclass(frozen=True)
class ProbeOptions:
    """What the user asked for.

    Attributes:
        model: a model folder in hub layout, or None for the bundled tiny model.
        layers: layers of each kind at the model's full width; None picks the rung by the device.
        runs: of each candidate; None is one under the `model` clock and four under the others.
        exact: equal bits whatever the cache gave; adds a run without cache to compare with.
        step_times, priced_by: what steps take under the `model` clock, and the report that says so (None: assumed).
        requests: run the first so many; None: as many as the budget allows.
        self_check: also run a candidate in a pool so small that it evicts, and a few requests in one that preempts.
        check: verify the bookkeeping's conservation laws after every step.
    """

    device: DeviceName = "cpu"
    clock: ClockName = "model"
    model: Path | None = None
    layers: int | None = None
    runs: int | None = None
    exact: bool = False
    slo: Mapping[str, float] = field(default_factory=dict)
    arrivals: Arrivals = "sequential"
    outputs: Outputs = "none"
    seed: int = 0
    step_times: StepTimes = ASSUMED
    priced_by: str | None = None
    requests: int | None = None
    self_check: bool = False
    check: bool = False

    @property
    def runs_each(self) -> int:
        return self.runs or (1 if self.clock == "model" else 4)


@dataclass(frozen=True)
class ProbeResult:
    """`interrupted`: stopped by the user or by a lack of memory; what was finished is in `validation`."""

    validation: Validation
    interrupted: bool = False


def validate_on_engine(
    trace: TokenTrace,
    config: EngineConfig,
    units: Sequence[int | None],
    options: ProbeOptions,
    progress: Progress,
) -> ProbeResult:
    """Run each unit (None: the flag unset) of a server on the bundled engine; the first is the current unit.

    Raises:
        MissingDependencyError: no torch, or no such device.
        NoUsableRequestError: the trace holds no token ids.
        UnusableInputError: the model, the groups or an id cannot be run; the pool does not fit.
        KeyboardInterrupt: before anything was finished.
    """
    from kvtune.gpu_probe.engine.devices import open_device

    device = open_device(options.device)
    from kvtune.gpu_probe.engine.session import Session

    return Session(trace, config, units, options, device).run(progress)
