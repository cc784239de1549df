"""The replayed units of one analysis, and how to replay any of them again in another pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvtune.analyzers.decision.objective import Objective
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.replay import ReplayResult
from kvtune.analyzers.replays import ReplayTask


@dataclass(frozen=True)
class ReplayedUnits:
    """Units are named by the grid that their hits land on, as in the report.

    Attributes:
        config: the server. match_units: the flag's value by unit; None is unset. results: the replays of the sweep.
        objective: what a choice minimises, in tokens. workers: processes that replay.
    """

    config: EngineConfig
    task: ReplayTask
    match_units: Mapping[int, int | None]
    results: Mapping[int, ReplayResult]
    current_unit: int
    recommended_unit: int
    objective: Objective
    workers: int = 1

    @property
    def shown(self) -> tuple[int, ...]:
        """The current unit and, where it is another, the recommended one."""
        return tuple(dict.fromkeys((self.current_unit, self.recommended_unit)))

    @property
    def overlap(self) -> bool:
        """Whether requests may run at once."""
        return self.task.arrivals != "sequential"

    def config_of(self, unit: int) -> EngineConfig:
        """The server with that unit."""
        return replace(self.config, match_unit=self.match_units[unit])

    def in_pool(self, unit: int, num_blocks: int | None) -> EngineConfig:
        """The server with that unit and pool."""
        return replace(self.config_of(unit), num_blocks=num_blocks)

    def unlimited(self, unit: int) -> ReplayResult:
        """One unit in an unlimited pool."""
        return (
            self.results[unit] if self.config.num_blocks is None else self.task.run(self.in_pool(unit, None))
        )

    def one_at_a_time(self, unit: int) -> ReplayResult:
        """One unit where no two requests run at once; replayed again where they overlap."""
        if not self.overlap:
            return self.results[unit]
        return replace(self.task, arrivals="sequential").run(self.config_of(unit))
