"""Reuse against pool size: the same replay over a ladder of pools, for the units that matter.

Knows replays; not how many bytes a block has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.recommend import Outcome
from kvtune.analyzers.replay import ReplayInput, replay
from kvtune.analyzers.report import CapacityPoint
from kvtune.analyzers.sweep import Progress

STEPS_PER_DOUBLING = 1
MOST_RUNGS = 12


def ladder(smallest: int, largest: int) -> list[int]:
    """Pool sizes from `largest` down by halves to `smallest`, ascending; at most 12."""
    sizes = [largest]
    while sizes[-1] // 2 >= smallest and len(sizes) < MOST_RUNGS:
        sizes.append(sizes[-1] // 2)
    return sizes[::-1]


def capacity_curve(
    config: EngineConfig,
    inputs: ReplayInput,
    units: Sequence[int],
    *,
    pools: Sequence[int],
    default_unit: int,
    progress: Progress,
) -> tuple[CapacityPoint, ...]:
    """Replay each unit at each pool size; pool sizes count the null block, as the engine's option does."""
    points = []
    for index, num_blocks in enumerate(pools):
        progress("pool sizes", index, len(pools))
        for unit in units:
            result = replay(
                replace(config, num_blocks=num_blocks, match_unit=None if unit == default_unit else unit), inputs
            )
            points.append(
                CapacityPoint(
                    num_blocks=num_blocks,
                    unit=unit,
                    engine_hit_tokens=int(result.hit_tokens.sum()),
                    evicted_blocks=int(result.evicted_blocks.sum()),
                )
            )
    progress("pool sizes", len(pools), len(pools))
    return tuple(points)
