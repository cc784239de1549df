"""What a drafter costs in hits, against the ladder of vllm#53504 and the published one of dflash."""

from __future__ import annotations

import pytest

from kvtune.analyzers.analysis import find
from kvtune.analyzers.drafter_cost import drafter_caveat
from kvtune.analyzers.layout import Drafter, EngineConfig, parse_groups
from kvtune.analyzers.options import AnalyzeOptions
from kvtune.analyzers.sweep import no_progress
from tests.analyzers.log_check.test_log_check import repeated


def said(
    version: str, drafter: Drafter | None, lengths: list[int], groups: str = "mamba:448*3,full:448"
) -> list[str]:
    config = EngineConfig(parse_groups(groups), version=version, drafter=drafter, retention_interval=None)
    found = find(repeated(lengths), config, AnalyzeOptions(units=(448,)), no_progress)
    return list(drafter_caveat(found, found.setting.current_unit))


@pytest.mark.parametrize("method", ["dflash", "mtp", "eagle3"])
def test_a_dropped_block_is_counted(method: str) -> None:
    """Three prompts of 1,000: 448 tokens each time for the second and third, 896 without the drop of a block."""
    (sentence,) = said("0.28.0", Drafter(method, 3), [1000])
    assert sentence == (
        f"Without the drafter ({method}) this match unit reuses 896 tokens more: 59.7% of the prompt tokens, not 29.9%."
    )


def test_0_33_drops_nothing_for_dflash() -> None:
    assert said("0.33.0", Drafter("dflash", 3), [1000]) == []


def test_hashes_that_look_ahead_cost_nothing_here() -> None:
    assert said("0.33.0", Drafter("mtp", 1), [1000]) == [
        "Without the drafter (mtp) this match unit reuses as much."
    ]


@pytest.mark.parametrize("drafter", [None, Drafter("ngram", 4)])
def test_nothing_is_said_of_drafters_that_change_no_hit(drafter: Drafter | None) -> None:
    assert said("0.28.0", drafter, [1000]) == []
