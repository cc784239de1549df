"""The ladder of pools: what is not replayed again is what a replay gives; knees and choices against their words."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtune.analyzers.decision import Objective, Outcome, net_gain
from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.pool.capacity import SHARES, PoolReplays, explore_pools, find_knee, ladder
from kvtune.analyzers.pool.caveat import pool_caveat, pool_confidence
from kvtune.analyzers.pool.figures import CapacityPoint, PoolAdvice, PoolChoice
from kvtune.analyzers.pool.footprint import footprints
from kvtune.analyzers.pool.units import ReplayedUnits
from kvtune.analyzers.replay import replay
from kvtune.analyzers.sweep import no_progress
from tests.analyzers.bookkeeping.drive import inputs_of
from tests.analyzers.pool.replayed import replayed
from tests.analyzers.pool.test_footprint import families
from tests.analyzers.structures import load_structure

LAYOUT = parse_groups("mamba:8*3,full:8")
UNITS = {8: None, 4: 4, 2: 2}


@cache
def bfcl() -> ReplayedUnits:
    """300 requests of a real trace, three units."""
    inputs, _ = load_structure("bfcl")
    config = EngineConfig(groups=parse_groups("mamba:528*3,full:528"))
    few = inputs.subset(range(300))  # type: ignore[arg-type]
    return replayed(config, few, {528: None, 176: 176, 48: 48}, current=528, recommended=176, step_cost=128)


@pytest.mark.parametrize(
    ("smallest", "largest", "given", "rungs"),
    [
        (17, 100, None, [17, 25, 50, 100]),
        (17, 100, 60, [17, 25, 50, 60, 100]),
        (17, 100, 9, [9, 17, 25, 50, 100]),
        (30, 20, None, [20]),
        (3, 1 << 20, None, [1 << power for power in range(9, 21)]),
    ],
)
def test_the_ladder_halves_down_to_the_smallest_pool(
    smallest: int, largest: int, given: int | None, rungs: list[int]
) -> None:
    assert ladder(smallest, largest, given) == rungs


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 60), st.sampled_from([None, 40]))
def test_what_is_not_replayed_again_is_what_a_replay_gives(
    seed: int, more: int, num_blocks: int | None
) -> None:
    config = EngineConfig(groups=LAYOUT, num_blocks=num_blocks)
    inputs, _ = inputs_of(families(seed))
    units = replayed(config, inputs, UNITS, current=8, recommended=4)
    pools = PoolReplays(units)
    pool = footprints(units, [""] * len(inputs.paths), replay_again=False).smallest + more
    for unit, flag in UNITS.items():
        result = replay(replace(config, match_unit=flag, num_blocks=pool), inputs)
        sums = pools.of(pool, unit)
        assert sums.hit_tokens == result.hit_tokens.sum()
        assert sums.prefill_steps == result.prefill_steps.sum()
        assert sums.evicted_blocks == result.evicted_blocks.sum()
        assert sums.refused_requests == len(result.refused)


def test_points_and_choices_of_a_real_trace() -> None:
    units = bfcl()
    needs = footprints(units, [""] * 300, replay_again=False)
    points, advice = explore_pools(units, needs.smallest, no_progress)
    pools = sorted({point.num_blocks for point in points})
    assert pools[0] == needs.smallest
    assert pools[-1] == needs.enough_blocks
    assert {(point.num_blocks, point.unit) for point in points} == {
        (pool, unit) for pool in pools for unit in units.match_units
    }
    by_place = {(point.num_blocks, point.unit): point for point in points}
    assert all(by_place[pools[-1], unit].evicted_blocks == 0 for unit in units.match_units)
    assert [choice.num_blocks for choice in advice.choices] == pools
    for choice in advice.choices:
        outcomes = []
        for unit in units.match_units:
            result = units.task.run(units.in_pool(unit, choice.num_blocks))
            outcomes.append(Outcome(unit, result.hit_tokens, result.prefill_steps))
            assert by_place[choice.num_blocks, unit].engine_hit_tokens == result.hit_tokens.sum()
        current = outcomes[0]
        best = Objective("overhead", 128).best(outcomes, current, 0)
        gain = net_gain(best, current, 128)
        assert (choice.unit, choice.net_gain_tokens) == ((best.unit, gain) if gain > 0 else (528, 0))
        assert by_place[choice.num_blocks, choice.unit].net_gain_tokens == choice.net_gain_tokens


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("unit", [528, 176])
def test_a_knee_keeps_its_share_and_a_pool_a_little_smaller_does_not(unit: int, share: float) -> None:
    units = bfcl()
    pools = PoolReplays(units)
    rungs = ladder(footprints(units, [""] * 300, replay_again=False).smallest, pools.enough_blocks)
    knee = find_knee(pools, rungs, unit, share)
    assert knee is not None
    wanted = share * units.results[unit].hit_tokens.sum()
    assert (
        knee.engine_hit_tokens
        == units.task.run(units.in_pool(unit, knee.num_blocks)).hit_tokens.sum()
        >= wanted
    )
    assert all(pools.of(rung, unit).hit_tokens >= wanted for rung in rungs if rung >= knee.num_blocks)
    less = knee.num_blocks - max(1, knee.num_blocks // 32)
    assert knee.num_blocks == rungs[0] or units.task.run(units.in_pool(unit, less)).hit_tokens.sum() < wanted


def test_no_knee_where_nothing_is_hit() -> None:
    inputs, _ = inputs_of([[1] * 9, [2] * 9])
    units = replayed(EngineConfig(groups=LAYOUT), inputs, UNITS, current=8, recommended=8)
    points, advice = explore_pools(units, 8, no_progress)
    assert advice.knees == ()
    assert {choice.unit for choice in advice.choices} == {8}
    assert not any(point.engine_hit_tokens for point in points)


def test_the_caveat_says_what_is_known_of_the_pool() -> None:
    config = EngineConfig(groups=LAYOUT)
    inputs, _ = inputs_of([[1] * 20, [1] * 20])
    units = replayed(config, inputs, UNITS, current=8, recommended=4)
    needs = footprints(units, ["a", "b"], replay_again=False)

    def choices(*chosen: tuple[int, int]) -> PoolAdvice:
        return PoolAdvice(
            choices=tuple(PoolChoice(num_blocks=pool, unit=unit, net_gain_tokens=1) for pool, unit in chosen)
        )

    assert pool_caveat(replace(config, num_blocks=20), needs, None, 4) == ()
    assert pool_caveat(replace(config, enable_prefix_caching=False), needs, None, 4) == ()
    (unknown,) = pool_caveat(config, needs, None, 4)
    assert f"true from {needs.enough_blocks} blocks up" in unknown
    (same,) = pool_caveat(config, needs, choices((9, 4), (18, 4)), 4)
    assert "down to 9 blocks" in same
    (other,) = pool_caveat(config, needs, choices((9, 4), (18, 2), (36, 4)), 4)
    assert "With 18 blocks another match unit gains more" in other


def test_a_pool_that_may_change_the_choice_is_never_of_high_confidence() -> None:
    """With 18 blocks another unit nets 30 tokens and this one 10: 20 of 1,000 are 2%, of 4,000 half a per cent."""
    config = EngineConfig(groups=LAYOUT)
    inputs, _ = inputs_of([[1] * 20, [1] * 20])
    needs = footprints(
        replayed(config, inputs, UNITS, current=8, recommended=4), ["a", "b"], replay_again=False
    )
    enough = needs.enough_blocks
    assert enough is not None
    advice = PoolAdvice(choices=(PoolChoice(num_blocks=18, unit=2, net_gain_tokens=30),))
    point = CapacityPoint(num_blocks=18, unit=4, engine_hit_tokens=0, evicted_blocks=0, net_gain_tokens=10)

    def allowed(config: EngineConfig, prompt_tokens: int = 1000, least_blocks: int | None = None) -> str:
        return pool_confidence(
            config,
            needs,
            advice,
            [point],
            recommended_unit=4,
            prompt_tokens=prompt_tokens,
            least_blocks=least_blocks,
        )

    assert allowed(config) == "medium"
    assert allowed(config, 4000) == "high"
    given = replace(config, num_blocks=18)
    assert allowed(given) == "high"
    assert allowed(given, least_blocks=enough - 1) == "medium"
    assert allowed(given, least_blocks=enough) == "high"
    assert allowed(replace(given, enable_prefix_caching=False), least_blocks=enough - 1) == "high"
