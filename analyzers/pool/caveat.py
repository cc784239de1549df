"""How far the advice depends on the pool: for the recommendation's caveats."""

from __future__ import annotations

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.pool.figures import FootprintBySetting, PoolAdvice

_ASSUMED = "KV pool size unknown: assuming no evictions"


def pool_caveat(
    config: EngineConfig, needs: FootprintBySetting, advice: PoolAdvice | None, recommended_unit: int
) -> tuple[str, ...]:
    """One sentence where the pool's size was assumed, and what is known of it; none where it was given, or where
    nothing is cached in it.
    """
    if config.num_blocks is not None or not config.enable_prefix_caching:
        return ()
    if advice is None:
        if needs.enough_blocks is None:
            return (f"{_ASSUMED}. Pass --num-blocks.",)
        return (
            f"{_ASSUMED} (true from {needs.enough_blocks:,} blocks up). Pass --num-blocks or --capacity-curve.",
        )
    other = advice.largest_without(recommended_unit)
    if other is None:
        least = advice.choices[0].num_blocks
        return (
            f"{_ASSUMED}. Smaller pools, down to {least:,} blocks, have the same best unit but may reuse less.",
        )
    return (f"{_ASSUMED}. With {other:,} blocks another match unit gains more. Pass --num-blocks.",)
