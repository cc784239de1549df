"""Findings about hits and match units: where none is possible, where the unit asked for is not the one in force."""

from __future__ import annotations

from collections.abc import Iterator

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.resolver import ResolvedSizes
from kvtune.analyzers.sizing.finding import Finding
from kvtune.analyzers.sizing.releases import parse_release, sizing_rules
from kvtune.analyzers.sizing.sources import SizedServer
from kvtune.analyzers.units import UnitCandidate, divisors

DOCUMENTED_UNIT = 64
"""The unit that the engine's documentation suggests."""


def find_about_units(
    server: SizedServer,
    config: EngineConfig,
    sizes: ResolvedSizes | None,
    candidates: tuple[UnitCandidate, ...],
) -> Iterator[Finding]:
    """In order of consequence."""
    yield from _caching(server)
    yield from _length(config, sizes)
    yield from _unit(config, candidates)
    yield from _documented_unit(server, config, candidates)
    yield from _uneven(config)


def state_block(config: EngineConfig) -> int | None:
    """The aligned block of a hybrid model."""
    return max(
        (group.block_size for group in config.groups if group.kind == "mamba" and group.mode == "align"),
        default=None,
    )


def _caching(server: SizedServer) -> Iterator[Finding]:
    if server.prefix_caching or not any(sized.group.kind == "mamba" for sized in server.groups):
        return
    release = parse_release(server.flags.version)
    given = server.flags.enable_prefix_caching is not None
    if not given and not sizing_rules(release).hybrid_caching:
        why = "this release leaves it off for hybrid models by default"
    elif not given and server.source == "startup-log":
        why = "the log gives states one block as long as the longest sequence"
    else:
        why = "it is switched off"
    yield Finding("prefix_caching_off", f"prefix caching is off: {why}", "--enable-prefix-caching")


def _length(config: EngineConfig, sizes: ResolvedSizes | None) -> Iterator[Finding]:
    block = state_block(config)
    grid = sizes.cache_hit_alignment if sizes is not None else block
    if block is None or grid is None or config.max_model_len is None or config.max_model_len > grid:
        return
    yield Finding(
        "max_model_len_below_block",
        f"no hit is possible: sequences of at most {config.max_model_len:,} tokens never fill {grid:,}",
        f"--max-model-len above {grid}, or a --prefix-match-unit below it",
    )


def _unit(config: EngineConfig, candidates: tuple[UnitCandidate, ...]) -> Iterator[Finding]:
    asked = next((row for row in candidates if row.unit == config.match_unit), None)
    if asked is None or asked.reason is None:
        return
    names = {
        "no_fine_lookup": "unit_disabled_by_coarse_group",
        "single_group": "unit_ignored",
        "caching_off": "unit_ignored",
        "mamba_mode": "unit_ignored",
        "no_mamba_group": "unit_without_effect",
    }
    name = names.get(asked.rule or "", "unit_without_effect") if asked.valid else "unit_refused"
    legal = _nearest(candidates, asked.unit)
    change = f"--prefix-match-unit {' or '.join(map(str, legal))}" if not asked.valid and legal else None
    if asked.rule == "no_fine_lookup":
        block = next((group.block_size for group in config.groups if group.kind == "sliding_window"), None)
        change = f"--prefix-match-unit {block} (the window's own block), or none" if block else None
    yield Finding(name, f"match unit {asked.unit:,}: {asked.reason}", change)


def _documented_unit(
    server: SizedServer, config: EngineConfig, candidates: tuple[UnitCandidate, ...]
) -> Iterator[Finding]:
    """64 is legal only where it divides the block, which is rarely a power of two."""
    block = state_block(config)
    if block is None or block % DOCUMENTED_UNIT == 0 or config.match_unit is not None:
        return
    if not sizing_rules(parse_release(server.flags.version)).match_unit:
        return
    legal = _nearest(candidates, DOCUMENTED_UNIT)
    if legal:
        yield Finding(
            "documented_unit_illegal",
            f"{DOCUMENTED_UNIT}, the documentation's suggestion, does not divide {block:,}: the nearest legal units "
            f"are {' and '.join(map(str, legal))}",
            f"--prefix-match-unit {' or '.join(map(str, legal))}, whichever your own traffic wants (`kvtune analyze`)",
        )


def _nearest(candidates: tuple[UnitCandidate, ...], unit: int) -> list[int]:
    """The closest working units below and above."""
    default = max((row.unit for row in candidates if row.valid), default=1)
    works = sorted(n for n in divisors(default))
    below = [n for n in works if n < unit][-1:]
    above = [n for n in works if n > unit][:1]
    return below + above


def _uneven(config: EngineConfig) -> Iterator[Finding]:
    """Chunks end on the smallest block of any cacheable group: a larger Mamba block may never be met."""
    block = state_block(config)
    smallest = min((group.block_size for group in config.groups if group.cacheable), default=None)
    if block is None or smallest is None or smallest >= block or not config.enable_prefix_caching:
        return
    yield Finding(
        "chunks_miss_the_state_block",
        f"chunks end on multiples of {smallest:,}, states are kept on multiples of {block:,}: "
        "a prompt may leave no state that another can resume",
        f"--max-num-batched-tokens as a multiple of {block}",
    )
