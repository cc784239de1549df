"""Figures of others, and ones that two independent tools agree on: `tests/data/expected/published.json`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.profiles import NEWEST
from kvtune.analyzers.refusal import EngineRefusal
from kvtune.analyzers.replay import replay
from kvtune.analyzers.resolver import resolve_sizes
from kvtune.analyzers.sizing.engine_config import engine_config
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.analyzers.sizing.sources import SizeSources, size_server
from tests.analyzers.bookkeeping.drive import inputs_of, run_prompts
from tests.analyzers.structures import DATA

PUBLISHED: dict[str, Any] = json.loads((DATA / "expected" / "published.json").read_text())


def stream(number: int, length: int) -> list[int]:
    return [number * 100_000 + place for place in range(length)]


def legal_units(config: EngineConfig) -> list[int]:
    largest = max(group.block_size for group in config.groups)
    units = []
    for unit in range(1, largest + 1):
        try:
            resolve_sizes(replace(config, match_unit=unit), NEWEST)
        except EngineRefusal:
            continue
        units.append(unit)
    return units


def test_the_field_s_example_of_1500_tokens() -> None:
    """Sharing 1,500 tokens of a longer prompt hits 1,024 at every unit; unit 32 gains its 448 after a prompt that
    ended there."""
    ideal = PUBLISHED["example_1500"]["ideal"]
    shared = stream(1, 1500)
    sharers = [shared + stream(number, 600) for number in (2, 3, 4)]
    config = EngineConfig(groups=parse_groups("mamba:1024,full:1024"))
    for unit in (None, 32, 512):
        result = replay(replace(config, match_unit=unit), inputs_of(sharers)[0])
        assert result.hit_tokens.tolist() == [0, 0, ideal["hit_at_1024"]]
    result = replay(replace(config, match_unit=32), inputs_of([shared, *sharers])[0])
    assert result.hit_tokens.tolist() == [0, *[ideal["hit_at_32"]] * 3]
    assert ideal["hit_at_32"] - ideal["hit_at_1024"] == ideal["saved"] == 448


def test_units_for_1024_and_32() -> None:
    expected = PUBLISHED["units_for_groups_1024_and_32"]
    units = legal_units(EngineConfig(groups=parse_groups("1024,32")))
    assert set(expected["valid"]) <= set(units)
    assert not set(expected["invalid"]) & set(units)
    sizes = resolve_sizes(EngineConfig(groups=parse_groups("1024,32")), NEWEST)
    assert (sizes.scheduler_block_size, sizes.hash_block_size) == (1024, 32)


@pytest.mark.parametrize(
    ("block", "name", "low", "high"),
    [
        (528, "divisors_of_528", 1, 528),
        (1056, "divisors_of_1056_from_16_to_528", 16, 528),
        (2096, "divisors_of_2096_from_8_below_itself", 8, 2095),
    ],
)
def test_legal_units_are_divisors(block: int, name: str, low: int, high: int) -> None:
    units = legal_units(EngineConfig(groups=parse_groups(f"mamba:{block},full:{block}")))
    assert [unit for unit in units if low <= unit <= high] == PUBLISHED[name]


def test_blocks_of_four() -> None:
    expected = PUBLISHED["block_of_four"]
    config = EngineConfig(groups=parse_groups(expected["groups"]))
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 17, 18]]
    assert replay(config, inputs_of(prompts)[0]).hit_tokens.tolist() == expected["hits"]
    with pytest.raises(EngineRefusal, match="single group"):
        replay(replace(config, match_unit=2), inputs_of(prompts)[0])


@pytest.mark.parametrize("unit", [None, 2])
def test_blocks_of_six(unit: int | None) -> None:
    expected = PUBLISHED["six_token_block"]
    config = EngineConfig(groups=parse_groups(expected["groups"]), match_unit=unit)
    first = stream(1, 9)
    runs = run_prompts(config, [first, first[:8] + stream(2, 6)])
    wanted = expected["unset" if unit is None else "unit_2"]
    assert [run.hit for run in runs] == wanted["hits"]
    assert [run.chunks for run in runs] == wanted["chunks"]
    if unit is not None:
        assert [run.copies for run in runs] == wanted["copies"]


def test_the_last_token_is_always_recomputed() -> None:
    """A prompt of only the 8 shared tokens has its tail at floor(7 / 2) * 2 = 6."""
    expected = PUBLISHED["six_token_block"]["unit_2_first_is_only_the_8"]
    config = EngineConfig(groups=parse_groups("mamba:6,full:6"), match_unit=2)
    first = stream(1, 8)
    assert [run.hit for run in run_prompts(config, [first, first + stream(2, 6)])] == expected["hits"]


def test_a_coarser_unit_can_reuse_more() -> None:
    expected = PUBLISHED["system_prompt_5000_block_1056"]["total_hits"]
    tails = (137, 286, 455, 61, 318, 453)
    prompts = [stream(1, 5000) + stream(2 + place, tail) for place, tail in enumerate(tails)]
    inputs = inputs_of(prompts)[0]
    config = EngineConfig(groups=parse_groups("mamba:1056,full:1056"))
    for unit, total in expected.items():
        result = replay(replace(config, match_unit=None if unit == "unset" else int(unit)), inputs)
        assert int(result.hit_tokens.sum()) == total


def test_hashed_positions() -> None:
    for name, count in PUBLISHED["hash_positions_131072"].items():
        assert 131072 // int(name.removeprefix("unit_")) == count


def served(prompts: list[list[int]], groups: str, **flags: Any) -> list[int]:
    """Hit tokens under the settings that a server takes where only `flags` are given."""
    server = size_server(SizeSources(flags=ServeFlags(**flags), groups=parse_groups(groups)))
    result = replay(engine_config(server), inputs_of(prompts)[0])
    return [int(hit) for hit in result.hit_tokens]


def test_the_ladder_of_a_drafter_on_0_28() -> None:
    """Two GPUs, blocks of 448, dflash with seven drafts, each prompt sent twice: hits of the second."""
    lengths = [512, 1024, 2048, 4096, 8192, 16384, 32768]
    prompts = [stream(number, length) for number, length in enumerate(lengths) for _ in range(2)]
    drafting = {"version": "0.28.0", "speculative_method": "dflash", "num_speculative_tokens": 7}
    hits = served(prompts, "mamba:448*3,full:448", **drafting)
    assert hits[1::2] == [0, 448, 1344, 3584, 7616, 15680, 32256]
    assert served(prompts, "mamba:448*3,full:448", **drafting | {"version": "0.33.0"})[1::2] == [
        (length - 1) // 448 * 448 for length in lengths
    ]  # 0.33 drops nothing for dflash


@pytest.mark.parametrize(
    ("stated", "hits"),
    [
        ({}, [0, 1600, 1600, 1600]),
        ({"retention_given": True, "retention_interval": 0}, [0, 0, 1600, 1600]),
    ],
)
def test_a_hybrid_with_a_drafter_served_by_0_29(stated: dict[str, object], hits: list[int]) -> None:
    """vllm#53504: one prompt of 4,481 tokens four times, blocks of 1,600; where no retention is given, every state is
    kept."""
    drafting = {"version": "0.29.0", "speculative_method": "mtp", "num_speculative_tokens": 2}
    assert served([stream(1, 4481)] * 4, "mamba:1600*3,full:1600", **drafting, **stated) == hits
