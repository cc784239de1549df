"""How far the advice depends on the pool: for the recommendation's caveats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from kvtune.analyzers.decision.choice import HIGH_REGRET
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.pool.figures import CapacityPoint, FootprintBySetting, PoolAdvice

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


def pool_confidence(
    config: EngineConfig,
    needs: FootprintBySetting,
    advice: PoolAdvice | None,
    points: Sequence[CapacityPoint],
    *,
    recommended_unit: int,
    prompt_tokens: int,
    least_blocks: int | None = None,
) -> Literal["high", "medium"]:
    """The highest confidence that the pool allows: "medium" where its size is assumed or estimated and another
    plausible one changes the choice, or may.

    Args:
        points: of the pools tried. least_blocks: the low end of an estimated pool; None where none was estimated.
    """
    if not config.enable_prefix_caching:
        return "high"
    if least_blocks is not None:
        evicts = needs.enough_blocks is None or least_blocks < needs.enough_blocks
        return "medium" if evicts else "high"
    if config.num_blocks is not None or advice is None:
        return "high"
    gains = {
        point.num_blocks: point.net_gain_tokens or 0 for point in points if point.unit == recommended_unit
    }
    lost = max(
        (choice.net_gain_tokens - gains.get(choice.num_blocks, 0) for choice in advice.choices), default=0
    )
    return "medium" if lost > HIGH_REGRET * prompt_tokens else "high"
