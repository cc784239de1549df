"""Units replayed on a trace of a few tokens, as an analysis hands them to the pool's figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvtune.analyzers.decision import Objective
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.pool.units import ReplayedUnits
from kvtune.analyzers.replay import ReplayInput, replay
from kvtune.analyzers.replays import ReplayTask


def replayed(
    config: EngineConfig,
    inputs: ReplayInput,
    match_units: Mapping[int, int | None],
    *,
    current: int,
    recommended: int,
    step_cost: int = 2,
) -> ReplayedUnits:
    return ReplayedUnits(
        config,
        ReplayTask(inputs),
        match_units,
        {unit: replay(replace(config, match_unit=flag), inputs) for unit, flag in match_units.items()},
        current_unit=current,
        recommended_unit=recommended,
        objective=Objective("overhead", step_cost),
    )
