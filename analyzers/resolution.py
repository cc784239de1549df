"""`Resolution`: the sizes that an engine will resolve, or did; the JSON document `kvtune.resolve/1`.

    sized server --> profile of its release --> sizes, units, what-ifs, findings

Field names are a contract with scripts: fields may be added, none is renamed or dropped without `SCHEMA` going up.
Counts are tokens unless the name says otherwise. Knows no files and no terminal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import msgspec

from kvtune.analyzers.layout import EngineConfig, Kind, MambaMode
from kvtune.analyzers.profiles import FIRST_WITH_MATCH_UNIT, ReleaseProfile, nearest_profile, profile_for
from kvtune.analyzers.refusal import EngineRefusal
from kvtune.analyzers.report import SizeSource
from kvtune.analyzers.resolver import ResolvedSizes, effective_block_size, resolve_sizes
from kvtune.analyzers.sizing.engine_config import engine_config
from kvtune.analyzers.sizing.findings import find_all
from kvtune.analyzers.sizing.releases import parse_release, release_name, sizing_rules
from kvtune.analyzers.sizing.sources import SizedServer
from kvtune.analyzers.sizing.traffic import TrafficRow, traffic_of
from kvtune.analyzers.sizing.what_if import what_ifs
from kvtune.analyzers.units import UnitCandidate, default_match_unit, minimum_shared_prefix, unit_candidates

SCHEMA: Literal["kvtune.resolve/1"] = "kvtune.resolve/1"


class ResolvedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A KV cache group, or `count` like ones in a row; `layers` in each, with the padding that makes them equal."""

    kind: Kind
    block_size: int
    count: int
    layers: int | None
    cacheable: bool
    window: int | None = None
    mode: MambaMode | None = None


class ResolvedUnit(msgspec.Struct, frozen=True, kw_only=True):
    """One match unit: `reason` says why it is struck, or why hits land on another grid."""

    unit: int
    valid: bool
    effective_unit: int
    reason: str | None


class WhatIfRow(msgspec.Struct, frozen=True, kw_only=True):
    """The block under one other flag; `error` where the engine would not take it."""

    what: str
    flag: str
    attention_block_size: int | None
    mamba_page_bytes: int | None
    padding_pct: float | None
    current: bool
    error: str | None


class FindingRow(msgspec.Struct, frozen=True, kw_only=True):
    """Something to know, by name, and what changes it."""

    name: str
    text: str
    change: str | None


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """The document.

    Attributes:
        attention_block_size: of full attention. mamba_page_bytes: of one state before padding, on one rank.
        padding_pct: by how much a state page is padded to an attention page.
        minimum_reusable_prefix: the shortest prompt whose resend hits. minimum_shared_prefix: what prompts that part
            later must share, at least.
        error: the engine would not start, and why; the sizes are then those without the refused setting.
        ignored_flags: of the serve command, which do not decide sizes or are not known.
        provenance: where values stand that a file decided (`server.log:12`).
        traffic: what the metrics page counted since the server started; None without one.
        num_blocks: of the pool, where something says so.
    """

    schema: Literal["kvtune.resolve/1"] = SCHEMA
    engine_version: str
    source: SizeSource
    groups: tuple[ResolvedGroup, ...]
    attention_block_size: int | None
    mamba_page_bytes: int | None
    attention_bytes_per_token: int | None
    padding_pct: float | None
    scheduler_block_size: int
    hash_block_size: int
    cache_hit_alignment: int
    partial_hits: bool
    minimum_reusable_prefix: int
    minimum_shared_prefix: int
    match_unit: int | None
    enable_prefix_caching: bool
    num_blocks: int | None
    candidates: tuple[ResolvedUnit, ...]
    what_if: tuple[WhatIfRow, ...]
    findings: tuple[FindingRow, ...]
    error: str | None
    warnings: tuple[str, ...]
    ignored_flags: tuple[str, ...]
    provenance: dict[str, str]
    traffic: TrafficRow | None = None


def resolve(
    server: SizedServer, *, units: Sequence[int] | None = None, ignored_flags: Sequence[str] = ()
) -> Resolution:
    """Resolve a server's sizes, units and what-ifs.

    Args:
        units: those to list; None lists every divisor of the default.
    """
    config = engine_config(server)
    profile, caveat = _profile(server.flags.version)
    warnings = [*server.warnings, *([caveat] if caveat else [])]
    has_unit = sizing_rules(parse_release(server.flags.version)).match_unit
    if not has_unit and config.match_unit is not None:
        warnings.append(
            f"--prefix-match-unit {config.match_unit} does not exist in this release: it is left out"
        )
        config = replace(config, match_unit=None)
    sizes, error = _sizes(config, profile)
    if not server.kinds_known:
        warnings.append(_kinds_missing(config))
    if has_unit:
        candidates = _in_effect(server, config, unit_candidates(config, profile, units))
    else:
        candidates = _without_match_unit(config, units)
    grid, partial, hash_block = _hit_grid(server, config, sizes, profile)
    model = server.model
    return Resolution(
        engine_version=release_name(server.flags.version),
        source=server.source,
        groups=_group_rows(server),
        attention_block_size=_attention_block(server),
        mamba_page_bytes=model.block.mamba_page_bytes if model else None,
        attention_bytes_per_token=model.block.attention_bytes_per_token if model else None,
        padding_pct=server.padding_pct,
        scheduler_block_size=_scheduler_block(config),
        hash_block_size=hash_block,
        cache_hit_alignment=grid,
        partial_hits=partial,
        minimum_reusable_prefix=grid + 1,
        minimum_shared_prefix=minimum_shared_prefix(config, grid, partial_hits=partial),
        match_unit=config.match_unit,
        enable_prefix_caching=config.enable_prefix_caching,
        num_blocks=config.num_blocks,
        candidates=tuple(
            ResolvedUnit(unit=row.unit, valid=row.valid, effective_unit=row.effective_unit, reason=row.reason)
            for row in candidates
        ),
        what_if=tuple(
            WhatIfRow(
                what=row.what,
                flag=row.flag,
                attention_block_size=row.attention_block_size,
                mamba_page_bytes=row.mamba_page_bytes,
                padding_pct=row.padding_pct,
                current=row.current,
                error=row.error,
            )
            for row in (what_ifs(model) if model is not None else ())
        ),
        findings=tuple(
            FindingRow(name=found.name, text=found.text, change=found.change)
            for found in find_all(server, config, sizes if error is None else None, candidates)
        ),
        error=error,
        warnings=tuple(dict.fromkeys((*warnings, *(sizes.warnings if sizes is not None else ())))),
        ignored_flags=tuple(ignored_flags),
        provenance=server.provenance,
        traffic=traffic_of(server.metrics, grid + 1),
    )


def _profile(version: str | None) -> tuple[ReleaseProfile, str | None]:
    """The release's rules; before the match unit, those of the first release that has it, whose blocks are the same."""
    if sizing_rules(parse_release(version)).match_unit:
        release = parse_release(version)
        selected = profile_for(f"{release[0]}.{release[1]}")
        return selected.profile, selected.caveat
    return nearest_profile(parse_release(version)), None


def _sizes(config: EngineConfig, profile: ReleaseProfile) -> tuple[ResolvedSizes | None, str | None]:
    """Resolved sizes, and the reason where the engine refuses; then those without the match unit, if it takes them."""
    try:
        return resolve_sizes(config, profile), None
    except EngineRefusal as refusal:
        try:
            return resolve_sizes(replace(config, match_unit=None), profile), str(refusal)
        except EngineRefusal:
            return None, str(refusal)


def _hit_grid(
    server: SizedServer, config: EngineConfig, sizes: ResolvedSizes | None, profile: ReleaseProfile
) -> tuple[int, bool, int]:
    """The grid of hits, whether it is finer than blocks, and the hash unit."""
    block = _scheduler_block(config)
    if not server.kinds_known:
        unit = config.match_unit or default_match_unit(config, profile)
        return unit, unit < block, unit
    if not sizing_rules(parse_release(server.flags.version)).match_unit or sizes is None:
        return block, False, default_match_unit(config, profile)
    if server.hidden_coarse_managers:
        return block, False, sizes.hash_block_size
    return sizes.cache_hit_alignment, sizes.partial_hits, sizes.hash_block_size


def _scheduler_block(config: EngineConfig) -> int:
    dcp = config.decode_context_parallel_size
    return math.lcm(*(effective_block_size(group, dcp) for group in config.expanded()))


def _kinds_missing(config: EngineConfig) -> str:
    block = _scheduler_block(config)
    return (
        f"the groups' kinds are not known: whether hits land on the unit or on multiples of {block:,} depends on them; "
        "name them, for instance --groups mamba:528*3,full:528"
    )


def _in_effect(
    server: SizedServer, config: EngineConfig, candidates: tuple[UnitCandidate, ...]
) -> tuple[UnitCandidate, ...]:
    """A server that says in its log that it takes whole blocks only does so with every unit."""
    if not server.hidden_coarse_managers:
        return candidates
    block = _scheduler_block(config)
    reason = (
        f"the server's log says that {', '.join(server.hidden_coarse_managers)} can be looked up by whole blocks only; "
        f"hits land on multiples of {block:,}"
    )
    return tuple(
        replace(row, effective_unit=block, rule="no_fine_lookup", reason=reason, swept=False)
        if row.valid and row.effective_unit != block
        else row
        for row in candidates
    )


def _without_match_unit(config: EngineConfig, units: Sequence[int] | None) -> tuple[UnitCandidate, ...]:
    """Before 0.26 hits land on the scheduler block, and there is nothing to set."""
    block = _scheduler_block(config)
    reason = f"there is no match unit before {FIRST_WITH_MATCH_UNIT}"
    rows = [UnitCandidate(block, True, block, None, None, True)]
    rows += [
        UnitCandidate(unit, False, block, "engine_refuses", reason, False)
        for unit in sorted(set(units or ()) - {block}, reverse=True)
    ]
    return tuple(rows)


def _group_rows(server: SizedServer) -> tuple[ResolvedGroup, ...]:
    rows: list[ResolvedGroup] = []
    for sized in server.groups:
        group = sized.group
        row = ResolvedGroup(
            kind=group.kind,
            block_size=group.block_size,
            count=1,
            layers=sized.layers,
            cacheable=group.cacheable,
            window=group.window,
            mode=group.mode,
        )
        last = rows[-1] if rows else None
        if last is not None and msgspec.structs.replace(last, count=1, layers=row.layers) == row:
            layers = None if row.layers is None else max(row.layers, last.layers or 0)
            rows[-1] = msgspec.structs.replace(last, count=last.count + 1, layers=layers)
        else:
            rows.append(row)
    return tuple(rows)


def _attention_block(server: SizedServer) -> int | None:
    """The block of full attention, where all of its groups agree on one."""
    blocks = {
        sized.group.block_size
        for sized in server.groups
        if sized.group.kind == "full" and sized.group.cacheable
    }
    return blocks.pop() if len(blocks) == 1 else None
