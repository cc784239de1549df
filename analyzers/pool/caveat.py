"""How far the advice depends on the pool: for the recommendation's caveats."""

from __future__ import annotations

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.pool.figures import FootprintBySetting, PoolAdvice

_TAKEN = "the pool was taken as unlimited"


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
            return (f"{_TAKEN}: with --num-blocks evictions would count too",)
        return (
            f"{_TAKEN}, as one of {needs.enough_blocks:,} blocks would be: in a smaller one evictions count "
            "(--num-blocks, --capacity-curve)",
        )
    other = advice.largest_without(recommended_unit)
    if other is None:
        least = advice.choices[0].num_blocks
        return (
            f"{_TAKEN}: smaller ones, down to {least:,} blocks, lead to the same unit but may reuse less",
        )
    return (f"{_TAKEN}: in one of {other:,} blocks another unit gains more (--num-blocks)",)
