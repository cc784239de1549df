"""Single rules by hand: chunk ends, boundaries, retention, exports. Block 528 unless said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvtune.analyzers.bookkeeping.checkpoint import Boundary, CheckpointRules, can_export
from kvtune.analyzers.bookkeeping.retention import (
    WindowMask,
    contiguous_blocks,
    keeps_state,
    replay_boundaries,
)
from kvtune.analyzers.layout import Drafter, EngineConfig, parse_groups
from kvtune.analyzers.profiles import PROFILES
from tests.analyzers.bookkeeping.drive import run_prompts

HYBRID = EngineConfig(groups=parse_groups("mamba:528,full:528"))


def stream(number: int, length: int) -> list[int]:
    return [number * 100_000 + place for place in range(length)]


def ends(config: EngineConfig, *prompts: list[int]) -> list[int]:
    return run_prompts(config, list(prompts))[-1].ends


class TestChunkEnds:
    A = stream(1, 1946)

    def test_the_last_block_and_the_end(self) -> None:
        assert ends(HYBRID, self.A) == [1584, 1946]  # 1584 = 3 * 528

    def test_a_unit_adds_the_prompt_tail(self) -> None:
        assert ends(replace(HYBRID, match_unit=16), self.A) == [1584, 1936, 1946]  # 1936 = 121 * 16

    def test_a_hit_inside_a_block_first_reaches_the_next_boundary(self) -> None:
        longer = self.A + stream(2, 600)
        assert ends(replace(HYBRID, match_unit=16), self.A, longer) == [2112, 2544, 2546]

    def test_the_junction_stops_the_second_sharer(self) -> None:
        sibling, third = stream(1, 560) + stream(3, 1386), stream(1, 560) + stream(4, 1386)
        runs = run_prompts(HYBRID, [self.A, sibling, third])
        assert [run.hit for run in runs] == [0, 0, 528]
        assert [run.junction for run in runs] == [0, 528, 0]
        assert [run.ends for run in runs][1:] == [[528, 1584, 1946], [1584, 1946]]

    def test_a_block_wider_than_the_budget_is_reached_in_pieces(self) -> None:
        narrow = replace(HYBRID, max_num_batched_tokens=512)
        assert ends(narrow, stream(1, 1200)) == [512, 528, 1040, 1056, 1200]

    def test_a_block_aligned_prompt_leaves_a_block_to_compute(self) -> None:
        aligned = stream(7, 1056)
        assert ends(HYBRID, aligned) == [528, 1056]
        assert [run.hit for run in run_prompts(HYBRID, [aligned, aligned])] == [0, 528]
        old = replace(HYBRID, version="0.31.0")
        assert ends(old, aligned) == [1056]
        assert [run.hit for run in run_prompts(old, [aligned, aligned])] == [0, 0]

    def test_a_backend_that_exports_needs_no_split(self) -> None:
        exporting = EngineConfig(groups=parse_groups("mamba:528:export=1,full:528"), match_unit=16)
        runs = run_prompts(exporting, [self.A, self.A])
        assert [run.ends for run in runs] == [[1946], [1946]]
        assert [run.hit for run in runs] == [0, 1936]

    def test_the_block_drop_lowers_block_and_tail(self) -> None:
        drafter = Drafter("mtp", 1, disable_lookahead_block_hashes=True)
        dropping = replace(HYBRID, match_unit=16, drafter=drafter)
        assert ends(dropping, self.A) == [1056, 1920, 1946]
        assert [run.hit for run in run_prompts(dropping, [self.A, self.A])] == [0, 1920]

    def test_lookahead_hashes_need_the_next_token(self) -> None:
        """One that goes on differently right after a block-aligned prefix cannot prove its last unit."""
        lookahead = replace(HYBRID, match_unit=16, drafter=Drafter("mtp", 1))
        first, same, other = stream(7, 1056), stream(7, 1056), stream(7, 1056) + stream(8, 5)
        assert [run.hit for run in run_prompts(lookahead, [first, same, other])] == [0, 1040, 1040]


class TestBoundary:
    def test_positions(self) -> None:
        assert Boundary(1, 0).of(1056, 528) == 528
        assert Boundary(0, 0).of(1056, 528) == 1056
        assert Boundary(0, 1).of(1056, 528) == 528
        assert Boundary(0, 1).of(500, 528) == 0
        assert Boundary(1, 0).of(0, 16) == 0

    @pytest.mark.parametrize(
        ("release", "tail", "dropped", "exported"),
        [("0.33", 1040, 1040, 1040), ("0.31", 1056, 1040, 1040), ("0.28", 1056, 1056, 1040)],
    )
    def test_the_tail_of_a_prompt_of_1056_tokens(
        self, release: str, tail: int, dropped: int, exported: int
    ) -> None:
        plain = CheckpointRules(PROFILES[release], drop=False, lookahead=0)
        assert plain.tail.of(1056, 16) == tail == plain.keyed_tail(False).of(1056, 16)
        assert plain.exported.of(1056, 16) == exported
        assert CheckpointRules(PROFILES[release], drop=True, lookahead=0).tail.of(1056, 16) == dropped

    def test_lookahead_leaves_as_many_tokens(self) -> None:
        rules = CheckpointRules(PROFILES["0.33"], drop=False, lookahead=3)
        assert (rules.tail.of(1058, 16), rules.tail.of(1059, 16)) == (1040, 1056)


class TestRetention:
    def test_replay_boundaries(self) -> None:
        assert replay_boundaries(1056, 528, drop=False) == (1055,)
        assert set(replay_boundaries(1056, 528, drop=True)) == {0, 528}
        assert set(replay_boundaries(1946, 528, drop=True)) == {1056}

    def test_an_interval_keeps_its_multiples(self) -> None:
        kept = [block for block in range(11) if keeps_state(block, 528, 1056, 528, (5999,))]
        assert kept == [1, 3, 5, 7, 9, 10]  # multiples of 1056, and the block that ends at 5808

    def test_nothing_but_boundaries(self) -> None:
        assert [block for block in range(11) if keeps_state(block, 528, 0, 528, (5999, 1600))] == [2, 10]
        assert all(keeps_state(block, 528, None, 528, ()) for block in range(11))

    def test_a_window_of_1024_in_blocks_of_16(self) -> None:
        """P = 3000, retention 0: the 64 blocks that end at 2992 are kept, so keys 1984 to 2992."""
        mask = WindowMask(1024, 16, 0, 16, drop=False)
        kept = list(mask.kept(0, 187, (2999,)))
        assert [(kept[0] + 1) * 16, (kept[-1] + 1) * 16, len(kept)] == [1984, 2992, 64]

    def test_dense_windows_keep_what_a_boundary_looks_at(self) -> None:
        mask = WindowMask(17, 16, None, 64, drop=False)
        assert list(mask.kept(0, 8, ())) == [3, 7]
        assert list(WindowMask(17, 16, None, 64, drop=True).kept(0, 9, ())) == [3, 4, 7, 8]
        assert contiguous_blocks(17, 16, False) == 1
        assert contiguous_blocks(18, 16, True) == 3

    def test_a_grid_finer_than_the_window_s_block_keeps_all(self) -> None:
        assert list(WindowMask(100, 16, 0, 8, drop=False).kept(3, 6, ())) == [3, 4, 5]


def test_exports_need_a_whole_block_boundary_inside() -> None:
    assert can_export(0, 1946, 1936, 16, 528, 1)
    assert can_export(1584, 3000, 2992, 16, 528, 16)
    assert not can_export(0, 1946, 1936, 16, 528, None)
    assert not can_export(1584, 2112, 2096, 16, 528, 1)  # ends in the block it starts at
    assert not can_export(8, 1946, 1936, 16, 528, 1)  # starts between units
    assert not can_export(0, 1946, 1944, 24, 528, 16)  # 1944 is no multiple of 16
    assert not can_export(0, 1946, 1946, 1, 528, 1)  # at the chunk's own end
