"""Reuse against pool size: the same replay over a ladder of pools, for the units that matter.

Knows replays; not how many bytes a block has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.replay import ReplayInput
from kvtune.analyzers.report import CapacityPoint
from kvtune.analyzers.sweep import Progress, replay_caches
from kvtune.tokenization.trace import Int32

MOST_RUNGS = 12


def blocks_of_one_request(config: EngineConfig, block_sizes: Sequence[int], tokens: int) -> int:
    """Blocks, the null block included, that a lone request of `tokens` needs at most: all of its attention blocks;
    of each Mamba group the state that is written, the one before it and a copy."""
    return 1 + sum(
        3 if group.kind == "mamba" else -(-tokens // size)
        for group, size in zip(config.expanded(), block_sizes, strict=True)
    )


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
    replica: Int32 | None,
    pools: Sequence[int],
    default_unit: int,
    progress: Progress,
) -> tuple[CapacityPoint, ...]:
    """Replay each unit at each pool size; pool sizes count the null block, as the engine's option does."""
    points = []
    for index, num_blocks in enumerate(pools):
        progress("pool sizes", index, len(pools))
        for unit in units:
            match_unit = None if unit == default_unit else unit
            result = replay_caches(
                replace(config, num_blocks=num_blocks, match_unit=match_unit), inputs, replica
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
