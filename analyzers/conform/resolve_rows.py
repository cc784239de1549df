"""Rows of `resolve/1`: a layout and flags, and the sizes or the error that the engine's resolver gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvtune.analyzers.conform.errors import meaning_of, meaning_of_refusal
from kvtune.analyzers.conform.result import ConformResult
from kvtune.analyzers.layout import EngineConfig, KVCacheGroup
from kvtune.analyzers.profiles import ReleaseProfile
from kvtune.analyzers.refusal import BlockSizes, EngineRefusal, check_retention, check_start
from kvtune.analyzers.resolver import resolve_block_sizes, resolve_hit_alignment


def conform_rows(document: dict[str, Any], profile: ReleaseProfile) -> ConformResult:
    """Compare every row of a `resolve/1` document."""
    result = ConformResult()
    # Vectors of releases that keep the hit grid in the coordinator built one for every row: refusals are recorded.
    built = any("coordinator_error" in row for row in document["rows"])
    for index, row in enumerate(document["rows"]):
        result.cases += 1
        name = f"row {index}"
        groups = tuple(_group(spec) for spec in row["groups"])
        if "scheduler_block_size" in row:
            _compare_retention(result, name, row, groups)
        else:
            _compare_sizes(result, name, row, groups, profile, built=built)
    return result


def _compare_retention(
    result: ConformResult, name: str, row: dict[str, Any], groups: tuple[KVCacheGroup, ...]
) -> None:
    wanted = meaning_of(row["error"]) if "error" in row else "ok"
    found: object = "ok"
    try:
        check_retention(row["retention_interval"], row["scheduler_block_size"], groups)
    except EngineRefusal as refusal:
        found = meaning_of_refusal(refusal)
    result.compare(name, None, "retention_interval", wanted, found)


def _compare_sizes(
    result: ConformResult,
    name: str,
    row: dict[str, Any],
    groups: tuple[KVCacheGroup, ...],
    profile: ReleaseProfile,
    *,
    built: bool,
) -> None:
    config = EngineConfig(
        groups=groups,
        version=profile.version,
        match_unit=row["match_unit"],
        enable_prefix_caching=row["caching"],
        decode_context_parallel_size=row["dcp"],
        kv_connector=row["connector"],
    )
    try:
        sizes = resolve_block_sizes(config, profile)
    except EngineRefusal as refusal:
        wanted = meaning_of(row["error"]) if "error" in row else row["out"]
        result.compare(name, None, "error", wanted, meaning_of_refusal(refusal))
        return
    if "error" in row:
        result.compare(name, None, "error", meaning_of(row["error"]), "ok")
        return
    alignment, partial, _ = resolve_hit_alignment(config, profile, sizes)
    if built:
        wanted = meaning_of(row["coordinator_error"]) if "coordinator_error" in row else "ok"
        found = _start_refusal(config, profile, sizes, partial)
        result.compare(name, None, "coordinator_error", wanted, found)
    grid = None if "coordinator_error" in row else alignment
    result.compare(name, None, "out", row["out"], [sizes.scheduler_block_size, sizes.hash_block_size, grid])


def _start_refusal(config: EngineConfig, profile: ReleaseProfile, sizes: BlockSizes, partial: bool) -> object:
    try:
        check_start(replace(config, retention_interval=None), profile, sizes, partial=partial)
    except EngineRefusal as refusal:
        return meaning_of_refusal(refusal) if refusal.stage != "run" else "ok"
    return "ok"


def _group(spec: Sequence[Any]) -> KVCacheGroup:
    """`["full", size]`, `["mamba", size, mode]` or `["sliding_window", size, window]`."""
    kind, size, *rest = spec
    if kind == "mamba":
        return KVCacheGroup("mamba", size, mode=rest[0])
    if kind == "sliding_window":
        return KVCacheGroup("sliding_window", size, window=rest[0])
    return KVCacheGroup("full", size)
