"""Which units are listed, struck, neutralised and swept."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtune.analyzers.layout import EngineConfig, KVCacheGroup, parse_groups
from kvtune.analyzers.profiles import NEWEST, PROFILES
from kvtune.analyzers.refusal import EngineRefusal
from kvtune.analyzers.resolver import resolve_sizes
from kvtune.analyzers.units import (
    UnitCandidate,
    default_match_unit,
    divisors,
    minimum_shared_prefix,
    unit_candidates,
)

QWEN = (KVCacheGroup("mamba", 528, 3, mode="align"), KVCacheGroup("full", 528))


def judge(
    unit: int, groups: tuple[KVCacheGroup, ...], release: str = "0.33", **settings: object
) -> UnitCandidate:
    config = replace(EngineConfig(groups), **settings)
    (row,) = [row for row in unit_candidates(config, PROFILES[release], [unit]) if row.unit == unit]
    return row


def full(block: int, **fields: object) -> KVCacheGroup:
    return replace(KVCacheGroup("full", block), **fields)


def mamba(block: int, **fields: object) -> KVCacheGroup:
    return replace(KVCacheGroup("mamba", block, mode="align"), **fields)


def sliding(block: int) -> KVCacheGroup:
    return KVCacheGroup("sliding_window", block, window=4 * block)


def test_every_divisor_of_528_is_listed_and_works() -> None:
    rows = unit_candidates(EngineConfig(QWEN), NEWEST)
    listed = [528, 264, 176, 132, 88, 66, 48, 44, 33, 24, 22, 16, 12, 11, 8, 6, 4, 3, 2, 1]
    assert [row.unit for row in rows] == listed
    assert all(row.valid and row.effective_unit == row.unit and row.reason is None for row in rows)
    assert [row.unit for row in rows if not row.swept] == [6, 4, 3, 2, 1]


def test_named_units_are_all_judged_beside_the_default_and_the_current() -> None:
    rows = unit_candidates(EngineConfig(QWEN, match_unit=88), NEWEST, [64, 4])
    assert [(row.unit, row.valid, row.swept) for row in rows] == [
        (528, True, True),
        (88, True, True),
        (64, False, False),
        (4, True, True),
    ]


def test_bare_sizes_are_judged_by_divisibility_and_name_the_group() -> None:
    def bare(spec: str, units: list[int]) -> dict[int, UnitCandidate]:
        return {row.unit: row for row in unit_candidates(EngineConfig(parse_groups(spec)), NEWEST, units)}

    rows = bare("1024,32", [32, 16, 8, 48])
    assert [unit for unit, row in rows.items() if row.valid] == [32, 16, 8]
    assert rows[48].rule == "divisibility"
    assert rows[48].reason == "does not divide group 0 (block 1,024) and group 1 (block 32)"
    assert bare("512,32", [64])[64].reason == "does not divide group 1 (block 32)"


@pytest.mark.parametrize(
    ("unit", "groups", "settings", "valid", "effective", "rule"),
    [
        (64, QWEN, {}, False, 528, "divisibility"),
        (0, QWEN, {}, False, 528, "engine_refuses"),
        (16, (full(16),), {}, True, 16, None),
        (8, (full(16),), {}, False, 16, "single_group"),
        (2, (mamba(64), full(64, tokens_per_state=4)), {}, False, 64, "state_compression"),
        (4, (mamba(64), full(64, tokens_per_state=4)), {}, True, 4, None),
        (16, (mamba(64, mode="all"), full(64)), {}, False, 64, "mamba_mode"),
        (16, QWEN, {"enable_prefix_caching": False}, True, 528, "caching_off"),
        (8, (full(32), sliding(16)), {}, True, 32, "no_mamba_group"),
        (16, (mamba(64), full(64), sliding(64)), {}, True, 64, "no_fine_lookup"),
        (16, (mamba(64), full(64), sliding(16)), {}, True, 16, None),
        (512, (full(1024), mamba(512)), {}, True, 1024, "whole_mamba_block"),
        (512, (full(512), mamba(1024)), {}, True, 512, None),
        # A ring buffer of 8 is not cacheable: it constrains nothing.
        (16, (mamba(1600), full(8, cacheable=False), full(1600)), {}, True, 16, None),
        # Two ranks: attention blocks span 128, the Mamba block 64, and hits inside a block are on by themselves.
        (64, (mamba(64), full(64)), {"decode_context_parallel_size": 2}, True, 64, None),
        (64, (full(64), sliding(64)), {"decode_context_parallel_size": 2}, False, 128, "context_parallelism"),
    ],
)
def test_one_rule_a_unit(
    unit: int,
    groups: tuple[KVCacheGroup, ...],
    settings: dict[str, object],
    valid: bool,
    effective: int,
    rule: str | None,
) -> None:
    row = judge(unit, groups, **settings)
    assert (row.valid, row.effective_unit, row.rule) == (valid, effective, rule)
    assert (row.reason is None) == (rule is None)


@pytest.mark.parametrize(
    ("release", "unit", "groups", "settings", "valid", "effective", "rule"),
    [
        ("0.31", 16, (full(64),), {}, True, 64, "single_group"),
        ("0.32", 16, (full(64),), {}, False, 64, "single_group"),
        ("0.31", 16, (mamba(64, mode="all"), full(64)), {}, True, 64, "mamba_mode"),
        (
            "0.28",
            32,
            (mamba(1024), full(1024)),
            {"decode_context_parallel_size": 2},
            True,
            2048,
            "context_parallelism",
        ),
        ("0.30", 32, (mamba(1024), full(1024)), {"decode_context_parallel_size": 2}, True, 32, None),
        ("0.26", 16, (mamba(64), full(64), sliding(64)), {}, False, 64, "no_fine_lookup"),
    ],
)
def test_releases_differ(
    release: str,
    unit: int,
    groups: tuple[KVCacheGroup, ...],
    settings: dict[str, object],
    valid: bool,
    effective: int,
    rule: str | None,
) -> None:
    row = judge(unit, groups, release, **settings)
    assert (row.valid, row.effective_unit, row.rule) == (valid, effective, rule)


def test_a_reason_names_the_group_that_is_in_the_way() -> None:
    assert (
        judge(64, QWEN).reason == "does not divide group 0 (mamba, block 528) and group 3 (full, block 528)"
    )
    reason = judge(16, (mamba(64), full(64), sliding(64))).reason
    assert reason is not None and reason.startswith("group 2 (sliding_window, block 64)")
    reason = judge(1024, (mamba(512), full(512)), decode_context_parallel_size=2).reason
    assert reason == "does not divide group 0 (mamba, block 512)"


def test_minimum_shared_prefix_is_the_smallest_cacheable_block() -> None:
    groups = (mamba(1584), full(8, cacheable=False), full(1584))
    assert minimum_shared_prefix(EngineConfig(groups), 16, partial_hits=True) == 1584
    ranks = EngineConfig((mamba(512), full(512)), decode_context_parallel_size=2)
    assert minimum_shared_prefix(ranks, 16, partial_hits=True) == 512
    assert default_match_unit(EngineConfig((mamba(512), full(768))), NEWEST) == 256


@given(st.integers(1, 20_000))
def test_divisors_are_exactly_the_divisors(number: int) -> None:
    assert divisors(number) == [n for n in range(number, 0, -1) if number % n == 0]


BLOCKS = st.sampled_from([16, 32, 48, 64, 96, 128, 528])
GROUPS = st.lists(
    st.one_of(
        BLOCKS.map(mamba),
        BLOCKS.map(full),
        BLOCKS.map(sliding),
        BLOCKS.map(lambda block: full(block, cacheable=False)),
    ),
    min_size=1,
    max_size=4,
).map(tuple)


@given(GROUPS, st.sampled_from([1, 2]), st.booleans(), st.sampled_from(sorted(PROFILES)))
def test_a_candidate_says_what_the_resolver_does(
    groups: tuple[KVCacheGroup, ...], dcp: int, caching: bool, release: str
) -> None:
    config = EngineConfig(groups, decode_context_parallel_size=dcp, enable_prefix_caching=caching)
    rows = unit_candidates(config, PROFILES[release])
    assert rows[0].unit == default_match_unit(config, PROFILES[release]) == max(row.unit for row in rows)
    with suppress(EngineRefusal):  # whoever starts without a unit has a replay of what is in force
        resolve_sizes(config, PROFILES[release])
        assert rows[0].valid and rows[0].swept
    for row in rows:
        if row.valid:
            sizes = resolve_sizes(replace(config, match_unit=row.unit), PROFILES[release])
            assert row.effective_unit == sizes.cache_hit_alignment
            assert sizes.scheduler_block_size % row.effective_unit == 0
        assert (row.reason is None) == (row.valid and row.effective_unit == row.unit)


@pytest.mark.parametrize(
    ("groups", "least"),
    [
        ("swa:16:window=64,full:32", 32),
        ("mamba:544*3,full:544,swa:181:window=1024", 98_464),
        ("mamba:528*3,full:528", 528),
    ],
)
def test_without_hits_inside_a_block_prompts_share_the_hit_alignment(groups: str, least: int) -> None:
    config = EngineConfig(parse_groups(groups))
    sizes = resolve_sizes(config, NEWEST)
    assert not sizes.partial_hits
    assert minimum_shared_prefix(config, sizes.cache_hit_alignment, partial_hits=sizes.partial_hits) == least


@pytest.mark.parametrize(("release", "default"), [("0.27", 16), ("0.28", 16), ("0.29", 528), ("0.33", 528)])
def test_groups_that_are_not_cached_count_for_the_default_in_old_releases(release: str, default: int) -> None:
    groups = (mamba(528), full(16, cacheable=False), full(528))
    (row,) = [row for row in unit_candidates(EngineConfig(groups), PROFILES[release]) if row.unit == default]
    assert default_match_unit(EngineConfig(groups), PROFILES[release]) == default
    assert row.valid and row.swept
