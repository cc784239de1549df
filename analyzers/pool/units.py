"""The replayed units of one analysis, and how to replay any of them again in another pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.options import Arrivals
from kvtune.analyzers.replay import ReplayInput, ReplayResult
from kvtune.analyzers.replays import replay_caches
from kvtune.tokenization.trace import Int32


@dataclass(frozen=True)
class ReplayedUnits:
    """Units are named by the grid that their hits land on, as in the report.

    Attributes:
        config: the server. match_units: the flag's value by unit; None is unset. results: the replays of the sweep.
        replica: int32[R], the cache that each request meets; None is one for all.
        step_cost: of one more prefill step, in tokens.
    """

    config: EngineConfig
    inputs: ReplayInput
    replica: Int32 | None
    arrivals: Arrivals
    match_units: Mapping[int, int | None]
    results: Mapping[int, ReplayResult]
    current_unit: int
    recommended_unit: int
    step_cost: int

    @property
    def shown(self) -> tuple[int, ...]:
        """The unit in force and, where it is another, the recommended one."""
        return tuple(dict.fromkeys((self.current_unit, self.recommended_unit)))

    def config_of(self, unit: int) -> EngineConfig:
        """The server with that unit."""
        return replace(self.config, match_unit=self.match_units[unit])

    def replay(self, unit: int, num_blocks: int | None, *, may_suffice: bool = True) -> ReplayResult:
        """One unit in a pool of `num_blocks`. Arguments as those of `kvtune.analyzers.replay.replay`."""
        config = replace(self.config_of(unit), num_blocks=num_blocks)
        return replay_caches(config, self.inputs, self.replica, self.arrivals, may_suffice=may_suffice)

    def unlimited(self, unit: int) -> ReplayResult:
        """One unit in an unlimited pool."""
        return self.results[unit] if self.config.num_blocks is None else self.replay(unit, None)

    def one_at_a_time(self, unit: int) -> ReplayResult:
        """One unit where no two requests run at once; replayed again where they overlap."""
        if self.arrivals == "sequential":
            return self.results[unit]
        return replay_caches(self.config_of(unit), self.inputs, self.replica)
