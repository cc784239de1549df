"""Which match units an engine accepts, what each one does there, and which of them are worth replaying.

    unit u --> does the engine start?  no: struck, with the one rule that forbids it
           \\-> which grid do hits land on?  u: it works;  the scheduler block: accepted, and neutralised by one rule

Knows sizes only. The rules themselves stand in `kvtune.analyzers.resolver`, which is asked once per unit; here
they are only put into words. What a unit is worth on real prompts is a matter of replay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from kvtune.analyzers.layout import EngineConfig, KVCacheGroup
from kvtune.analyzers.profiles import ReleaseProfile
from kvtune.analyzers.refusal import EngineRefusal
from kvtune.analyzers.resolver import effective_block_size, resolve_sizes

Rule = Literal[
    "divisibility",
    "state_compression",
    "single_group",
    "mamba_mode",
    "caching_off",
    "no_fine_lookup",
    "context_parallelism",
    "no_mamba_group",
    "whole_mamba_block",
    "engine_refuses",
]
"""Why a unit is struck or does nothing; one word each, the same in every release."""

SMALLEST_SWEPT_UNIT = 8
"""Finer units are listed and not replayed: below this, hashing costs more than the few tokens are worth."""

_RULE_OF_REFUSAL: dict[str, Rule] = {
    "unit_on_single_group": "single_group",
    "single_group_hash_differs": "single_group",
    "unit_does_not_divide": "divisibility",
    "block_not_multiple_of_hash_unit": "divisibility",
    "compression_misaligned": "state_compression",
    "kind_without_fine_lookup": "no_fine_lookup",
    "kind_not_under_dcp": "context_parallelism",
    "mamba_mode_not_align": "mamba_mode",
}


@dataclass(frozen=True)
class UnitCandidate:
    """One match unit, judged.

    Attributes:
        unit: tokens.
        valid: the engine starts with it.
        effective_unit: the grid that hits then land on; for a struck unit, the grid without the flag.
        rule: which rule strikes or neutralises it; None for a unit that does what it says.
        reason: the same in words, naming the group.
        swept: worth a replay of its own: it works and is not needlessly fine, or it is in force today, or the
            default, or it was named. A neutralised unit does what the default does.
    """

    unit: int
    valid: bool
    effective_unit: int
    rule: Rule | None
    reason: str | None
    swept: bool


def default_match_unit(config: EngineConfig, profile: ReleaseProfile) -> int:
    """What the engine takes when no unit is given: the GCD of the effective blocks of its cacheable groups, before 0.29
    of all. (`resolver: resolve_sizes` has the rule for hits)"""
    dcp = config.decode_context_parallel_size
    groups = config.expanded()
    asked = [group for group in groups if group.cacheable or not profile.uncacheable_groups] or list(groups)
    return math.gcd(*(effective_block_size(group, dcp) for group in asked))


def minimum_shared_prefix(config: EngineConfig, hit_alignment: int, *, partial_hits: bool) -> int:
    """The least that prompts which diverge later must share, in tokens: the smallest effective block of a cacheable
    group; without hits inside a block the hit alignment."""
    if not partial_hits:
        return hit_alignment
    dcp = config.decode_context_parallel_size
    groups = config.expanded()
    cacheable = [group for group in groups if group.cacheable] or list(groups)
    return min(effective_block_size(group, dcp) for group in cacheable)


def divisors(number: int) -> list[int]:
    """All divisors, largest first."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)}, reverse=True)


def grids_of(candidates: Iterable[UnitCandidate]) -> set[int]:
    """The grids on which hits can land, over all units that the engine accepts."""
    return {candidate.effective_unit for candidate in candidates if candidate.valid}


def unit_candidates(
    config: EngineConfig, profile: ReleaseProfile, named: Iterable[int] | None = None
) -> tuple[UnitCandidate, ...]:
    """Judge every divisor of the default unit (or just the `named` units), the default and the current one.

    Groups of kind `unspecified` are judged by divisibility alone: whether hits would land on the unit is not known.

    Returns:
        The candidates, coarsest first. Never raises for a unit that the engine refuses: that is a struck row.
    """
    default = default_match_unit(config, profile)
    wanted = {default, config.match_unit or default, *(divisors(default) if named is None else named)}
    if any(group.kind == "unspecified" for group in config.groups):
        return tuple(_judge_by_size(config, default, unit) for unit in sorted(wanted, reverse=True))
    grid_without = _grid(replace(config, match_unit=None), profile)
    in_force = {default, config.match_unit or default}
    return tuple(
        _judge(config, profile, unit, grid_without, in_force=unit in in_force, asked_for=named is not None)
        for unit in sorted(wanted, reverse=True)
    )


def _judge_by_size(config: EngineConfig, default: int, unit: int) -> UnitCandidate:
    """For groups whose kinds nobody named: only divisibility can be told."""
    rule: Rule = "divisibility"
    reason = _why_struck(config, unit, rule) if unit >= 1 else "below 1"
    if reason is not None:
        return UnitCandidate(unit, False, default, rule, reason, False)
    return UnitCandidate(unit, True, unit, None, None, True)


def _judge(
    config: EngineConfig,
    profile: ReleaseProfile,
    unit: int,
    grid_without: int,
    *,
    in_force: bool,
    asked_for: bool,
) -> UnitCandidate:
    try:
        sizes = resolve_sizes(replace(config, match_unit=unit), profile)
    except EngineRefusal as refusal:
        rule = _RULE_OF_REFUSAL.get(refusal.rule, "engine_refuses")
        reason = _why_struck(config, unit, rule) or str(refusal)
        return UnitCandidate(unit, False, grid_without, rule, reason, False)
    grid = sizes.cache_hit_alignment
    if grid == unit:
        swept = in_force or asked_for or unit >= SMALLEST_SWEPT_UNIT
        return UnitCandidate(unit, True, grid, None, None, swept)
    inert, reason = _why_inert(config, profile, unit)
    if config.enable_prefix_caching:
        reason += f"; hits land on multiples of {grid:,}"
    return UnitCandidate(unit, True, grid, inert, reason, in_force)


def _grid(config: EngineConfig, profile: ReleaseProfile) -> int:
    """The hit grid of a configuration; of one that the engine refuses, its scheduler block."""
    try:
        return resolve_sizes(config, profile).cache_hit_alignment
    except EngineRefusal:
        dcp = config.decode_context_parallel_size
        return math.lcm(*(effective_block_size(group, dcp) for group in config.expanded()))


def _why_struck(config: EngineConfig, unit: int, rule: Rule) -> str | None:
    groups = config.expanded()
    dcp = config.decode_context_parallel_size
    if rule == "divisibility":
        odd: dict[str, str] = {}
        for index, group in enumerate(groups):
            if group.cacheable and effective_block_size(group, dcp) % unit:
                odd.setdefault(f"{group.kind} {group.block_size}", _name(index, group, dcp))
        return f"does not divide {' and '.join(odd.values())}" if odd else None
    if rule == "single_group":
        return f"there is one group only: hits land on its block, {effective_block_size(groups[0], dcp):,}"
    return None


def _why_inert(config: EngineConfig, profile: ReleaseProfile, unit: int) -> tuple[Rule, str]:
    """The first rule, in the resolver's own order, that keeps hits off an accepted unit."""
    groups = config.expanded()
    dcp = config.decode_context_parallel_size
    mambas = [(index, group) for index, group in enumerate(groups) if group.kind == "mamba"]
    if not config.enable_prefix_caching:
        return "caching_off", "prefix caching is off, so the unit is ignored"
    if len(groups) == 1:
        return "single_group", "this release ignores the unit when there is one group only"
    for index, group in mambas:
        if group.mode not in (None, "align"):
            return "mamba_mode", f"{_name(index, group, dcp)} caches in mode {group.mode}, not align"
    if not mambas:
        return "no_mamba_group", "no Mamba group: hits inside a block exist only for models that have one"
    if dcp > 1 and not profile.partial_hits_under_dcp:
        return (
            "context_parallelism",
            "this release has no hits inside a block with decode context parallelism",
        )
    for index, group in enumerate(groups):
        coarse = group.kind not in profile.fine_lookup_kinds and effective_block_size(group, dcp) != unit
        if coarse and (group.cacheable or not profile.uncacheable_groups):
            return "no_fine_lookup", f"{_name(index, group, dcp)} can be looked up by whole blocks only"
    return (
        "whole_mamba_block",
        f"a Mamba state is kept once per block of {mambas[0][1].block_size:,} at this unit",
    )


def _name(index: int, group: KVCacheGroup, dcp: int) -> str:
    block = f"{group.block_size:,}"
    if dcp > 1 and group.kind != "mamba":
        block += f" x {dcp} ranks"
    kind = "" if group.kind == "unspecified" else f"{group.kind}, "
    return f"group {index} ({kind}block {block})"
