"""The same requests through the bookkeeping once per unit: order, block sizes and pool fixed, the unit alone changes.

Knows candidates and the replay; not what is made of the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.options import Arrivals
from kvtune.analyzers.recommend import Outcome
from kvtune.analyzers.replay import ReplayInput, ReplayResult, replay
from kvtune.analyzers.shared import SharedPrefixes
from kvtune.analyzers.step_cost import ASSUMED, StepCostModel
from kvtune.analyzers.units import UnitCandidate
from kvtune.tokenization.trace import Int32, Int64, TokenTrace

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, steps done and steps in all."""


def no_progress(stage: str, done: int, total: int) -> None:
    """For callers that show none."""


@dataclass(frozen=True)
class Sweep:
    """Replay results by unit; neutralised units are absent (they do what `default_unit` does)."""

    results: dict[int, ReplayResult]
    default_unit: int
    current_unit: int

    def of(self, candidate: UnitCandidate) -> ReplayResult | None:
        """What a candidate did; None for one that the engine refuses or that was not replayed."""
        if candidate.unit in self.results:
            return self.results[candidate.unit]
        return self.results[self.default_unit] if candidate.valid and candidate.rule else None

    def outcomes(self, candidates: Sequence[UnitCandidate]) -> list[Outcome]:
        """One outcome per distinct grid, coarsest first: what there is to choose from."""
        chosen: dict[int, Outcome] = {}
        for candidate in candidates:
            result = self.of(candidate)
            if result is not None and candidate.effective_unit not in chosen:
                chosen[candidate.effective_unit] = Outcome(
                    candidate.effective_unit, result.hit_tokens, result.prefill_steps
                )
        return list(chosen.values())


def replay_input(trace: TokenTrace, shared: SharedPrefixes) -> ReplayInput:
    """The trace as the bookkeeping wants it: lengths, prefix keys, arrivals."""
    return ReplayInput(
        paths=shared.paths,
        prompt_tokens=trace.prompt_tokens,
        output_tokens=shared.output_tokens,
        arrival=None if np.isnan(trace.arrival).any() else trace.arrival,
        ids=trace.ids,
    )


def replay_caches(
    config: EngineConfig,
    inputs: ReplayInput,
    replica: Int32 | None,
    arrivals: Arrivals = "sequential",
    *,
    cost: StepCostModel = ASSUMED,
    check: bool = False,
) -> ReplayResult:
    """Replay each replica's requests (`replica` int32[R]) through a pool of its own; None: one for all."""
    if replica is None:
        return replay(config, inputs, arrivals=arrivals, cost=cost, check=check)
    members = [np.flatnonzero(replica == number) for number in np.unique(replica)]
    results = [
        replay(config, inputs.subset(indices), arrivals=arrivals, cost=cost, check=check)
        for indices in members
    ]
    return _join(results, members)


def _join(results: Sequence[ReplayResult], members: Sequence[Int64]) -> ReplayResult:
    """One result of all requests: per-request arrays in trace order, counts summed."""
    joined: dict[str, object] = {}
    for field in fields(ReplayResult):
        values = [getattr(result, field.name) for result in results]
        if isinstance(values[0], np.ndarray):
            whole = np.zeros(sum(map(len, members)), dtype=values[0].dtype)
            for indices, part in zip(members, values, strict=True):
                whole[indices] = part
            joined[field.name] = whole
        elif isinstance(values[0], int):
            joined[field.name] = sum(values)
        else:
            joined[field.name] = values[0]
    refused = (
        (int(indices[index]), needed)
        for indices, result in zip(members, results, strict=True)
        for index, needed in result.refused
    )
    joined["refused"] = tuple(sorted(refused))
    return ReplayResult(**joined)  # type: ignore[arg-type]


def sweep_units(
    config: EngineConfig,
    inputs: ReplayInput,
    candidates: Sequence[UnitCandidate],
    *,
    replica: Int32 | None,
    default_unit: int,
    arrivals: Arrivals,
    progress: Progress,
    cost: StepCostModel = ASSUMED,
    check: bool = False,
) -> Sweep:
    """Replay every candidate that is worth it; `check` verifies the conservation laws on the way."""
    swept = [candidate for candidate in candidates if candidate.swept and candidate.valid]
    results: dict[int, ReplayResult] = {}
    for index, candidate in enumerate(swept):
        progress("replay", index, len(swept))
        unit = None if candidate.unit == default_unit else candidate.unit
        results[candidate.unit] = replay_caches(
            replace(config, match_unit=unit), inputs, replica, arrivals, cost=cost, check=check
        )
    progress("replay", len(swept), len(swept))
    return Sweep(results, default_unit, config.match_unit or default_unit)
