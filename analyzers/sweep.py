"""The same requests through the bookkeeping once per unit: order, block sizes and pool fixed, the unit alone changes.

Knows candidates and the replay; not what is made of the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from kvtune.analyzers.decision import Outcome
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.replay import ReplayInput, ReplayResult
from kvtune.analyzers.replays import Replays, ReplayTask
from kvtune.analyzers.shared import SharedPrefixes
from kvtune.analyzers.step_times import StepTimes
from kvtune.analyzers.units import UnitCandidate
from kvtune.tokenization.trace import Float64, TokenTrace

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

    def _replayed(self, unit: int) -> int:
        return unit if unit in self.results else self.default_unit

    def prefill_s(self, step_times: StepTimes) -> dict[int, Float64] | None:
        """float64[R] by unit: seconds of each request's prefill steps: each alone, or, in a replay by timestamps, what
        they add to the steps that they run in; None where no step times are known."""
        if step_times.info.source == "none":
            return None
        under_load = {unit: result.added_prefill_s for unit, result in self.results.items()}
        if all(seconds is not None for seconds in under_load.values()):
            return {unit: seconds for unit, seconds in under_load.items() if seconds is not None}
        sizes = [len(result.prefill_chunks) for result in self.results.values()]
        chunks = np.concatenate([result.prefill_chunks for result in self.results.values()])
        seconds = step_times.prefill_s(
            chunks[:, 1], chunks[:, 2]
        )  # all units at once: many chunks are the same
        ends = np.cumsum(sizes)[:-1]
        return {
            unit: np.bincount(part[:, 0], weights=times, minlength=len(result.hit_tokens)).astype(np.float64)
            for (unit, result), part, times in zip(
                self.results.items(), np.split(chunks, ends), np.split(seconds, ends), strict=True
            )
        }

    def outcomes(
        self,
        candidates: Sequence[UnitCandidate],
        prefill_s: Mapping[int, Float64] | None = None,
        arrival: Float64 | None = None,
    ) -> list[Outcome]:
        """One outcome per distinct hit alignment, coarsest first: what there is to choose from.

        Args:
            prefill_s: float64[R] by unit, where step times are known. arrival: float64[R], of a replay by timestamps.
        """
        chosen: dict[int, Outcome] = {}
        for candidate in candidates:
            result = self.of(candidate)
            if result is not None and candidate.effective_unit not in chosen:
                chosen[candidate.effective_unit] = Outcome(
                    candidate.effective_unit,
                    result.hit_tokens,
                    result.prefill_steps,
                    None if prefill_s is None else prefill_s[self._replayed(candidate.unit)],
                    None
                    if prefill_s is None or arrival is None or result.first_token_s is None
                    else result.first_token_s - arrival,
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


def sweep_units(
    config: EngineConfig,
    task: ReplayTask,
    candidates: Sequence[UnitCandidate],
    *,
    default_unit: int,
    workers: int,
    progress: Progress,
    meanwhile: Callable[[Sequence[int]], None] = lambda _units: None,
) -> Sweep:
    """Replay every candidate that is worth it.

    Args:
        workers: processes in all. meanwhile: told the units that are replayed, while workers begin.
    """
    units = [candidate.unit for candidate in candidates if candidate.swept and candidate.valid]
    settings = [replace(config, match_unit=None if unit == default_unit else unit) for unit in units]
    with Replays(settings, task, workers=workers) as replays:
        meanwhile(units)
        results = replays.results(partial(progress, "replay"))
    return Sweep(dict(zip(units, results, strict=True)), default_unit, config.match_unit or default_unit)
