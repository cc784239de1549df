"""Which drafters drop a block per release, and engines that make no progress or only wait for their own output."""

from __future__ import annotations

from typing import Any

import pytest

from kvtune.analyzers.conform import conform_document
from kvtune.analyzers.conform.cases import engine_config
from kvtune.analyzers.drafting import lookahead_or_drop
from kvtune.analyzers.layout import Drafter, EngineConfig, parse_groups
from kvtune.analyzers.profiles import PROFILES


@pytest.mark.parametrize("method", ["dflash", "dspark"])
@pytest.mark.parametrize(
    ("release", "drops"), [("0.26", True), ("0.28", True), ("0.32", True), ("0.33", False)]
)
def test_dflash_and_dspark_drop_a_block_up_to_0_32(method: str, release: str, drops: bool) -> None:
    # Published on 0.28 (block 448, dflash k=7): a repeated prompt of 1,024 tokens hits 448, not 896.
    config = EngineConfig(groups=parse_groups("mamba:448*3,full:448"), drafter=Drafter(method, 7))
    assert lookahead_or_drop(config, PROFILES[release]) == (0, drops)


@pytest.mark.parametrize(
    ("eagle", "lookahead"),
    [({"method": "mtp", "modules": 3}, 3), ({"method": "mtp", "modules": 1}, 1), ({"method": "ngram"}, 0)],
)
def test_a_recorded_case_replays_its_own_draft_method(eagle: dict[str, Any], lookahead: int) -> None:
    config = {"groups": [{"type": "full", "block_size": 16}], "num_blocks": 99}
    case = {"config": config | {"eagle": eagle | {"num_speculative_tokens": 3}}}
    profile = PROFILES["0.33"]
    assert lookahead_or_drop(engine_config(case, profile), profile) == (lookahead, False)


def test_a_case_in_which_no_step_gets_further_ends_in_a_refusal() -> None:
    # Three modules need three known tokens past a chunk, or none: a budget of 1 never begins a prompt of 3.
    eagle = {"method": "mtp", "modules": 3, "num_speculative_tokens": 3}
    case = {
        "name": "no-progress",
        "mode": "sequential",
        "config": {
            "groups": [{"type": "full", "block_size": 4, "eagle": True}],
            "num_blocks": 40,
            "max_num_batched_tokens": 1,
            "eagle": eagle,
        },
        "requests": [{"prompt": [["seg", 1, 3]], "output": [["seg", 2, 1]]}],
        "error": {
            "stage": "run",
            "type": "NoProgress",
            "message": "a waiting request never fits the block pool",
        },
        "expect": [],
    }
    document = {"format": "prefix-hits/1", "vllm_version": "0.33.0", "about": "", "cases": [case]}
    assert conform_document(document, where="no-progress").differences == []
