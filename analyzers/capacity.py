"""Reuse against pool size: the same replay over a ladder of pools, for the units that matter.

Knows replays; not how many bytes a block has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.replay import ReplayInput
from kvtune.analyzers.replays import replay_caches
from kvtune.analyzers.report import CapacityPoint
from kvtune.analyzers.sweep import Progress
from kvtune.tokenization.trace import Int32

MOST_RUNGS = 12
_SHOWN_UNITS = 6


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


def rungs_of(
    pools: Sequence[int], units: Sequence[int], replayed: Sequence[int]
) -> list[tuple[int, list[int]]]:
    """Which units to replay at each pool size: `units` at all, and an even choice of all `replayed` ones at three."""
    ordered = sorted(replayed)
    step = max((len(ordered) - 1) / (_SHOWN_UNITS - 1), 1)
    even = {ordered[round(step * index)] for index in range(min(_SHOWN_UNITS, len(ordered)))}
    full = {len(pools) // 4, len(pools) // 2, 3 * len(pools) // 4}
    return [(pool, sorted({*units, *(even if index in full else ())})) for index, pool in enumerate(pools)]


def capacity_curve(
    config: EngineConfig,
    inputs: ReplayInput,
    rungs: Sequence[tuple[int, Sequence[int]]],
    *,
    replica: Int32 | None,
    default_unit: int,
    progress: Progress,
) -> tuple[CapacityPoint, ...]:
    """Replay units at pool sizes; pool sizes count the null block, as the engine's option does."""
    points = []
    for index, (num_blocks, units) in enumerate(rungs):
        progress("pool sizes", index, len(rungs))
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
    progress("pool sizes", len(rungs), len(rungs))
    return tuple(points)
