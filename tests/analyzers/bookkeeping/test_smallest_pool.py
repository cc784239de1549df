"""The smallest pool of one request: the replay is the judge, over layouts, units, drafters, budgets and releases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtune.analyzers.bookkeeping.smallest_pool import smallest_pool
from kvtune.analyzers.layout import Drafter, EngineConfig, parse_groups
from kvtune.analyzers.prefix_tree import PrefixPath
from kvtune.analyzers.profiles import profile_for
from kvtune.analyzers.refusal import EngineRefusal
from kvtune.analyzers.replay import ReplayInput, ReplayResult, replay

LAYOUTS = (
    "full:4",
    "swa:4:window=9",
    "chunked:4:window=12",
    "full:8,mamba:8",
    "mamba:8*3,full:8",
    "mamba:12,full:4",
    "full:4,swa:4:window=9",
    "chunked:8:window=16,full:8",
    "swa:4:window=6*2,full:8,mamba:8",
    "mamba:8:export=1*2,full:8",
    "mamba:8:mode=none*2,full:8",
    "full:8:cacheable=no,mamba:8,full:8",
    "mamba:8:draft*2,full:8:draft",
)


def one(prompt: int, output: int = 1, times: int = 1) -> ReplayInput:
    """The same request, once or several times."""
    paths = [PrefixPath([prompt], [0]) for _ in range(times)]
    return ReplayInput(paths, np.full(times, prompt), np.full(times, output))


def pool_of(config: EngineConfig, prompt: int, output: int = 1) -> tuple[int, int]:
    return tuple(smallest_pool(config, profile_for(config.version).profile, prompt, output))  # type: ignore[return-value]


def in_pool(config: EngineConfig, num_blocks: int, inputs: ReplayInput) -> ReplayResult:
    return replay(replace(config, num_blocks=num_blocks), inputs)


@pytest.mark.parametrize(
    ("groups", "settings_", "prompt", "output", "alone", "on_hit"),
    [
        # 5 blocks for 18 tokens, and the null block. The last token is never written, so an output of 2 takes
        # no more and one of 4, whose 21st is at place 20, takes a sixth.
        ("full:4", {}, 18, 1, 6, 6),
        ("full:4", {}, 18, 2, 6, 6),
        ("full:4", {}, 18, 4, 7, 7),
        # 38 blocks of attention. Chunks end at 296 and 300: each of three Mamba groups holds its state at 296 while
        # it writes the next. 1 + 38 + 3 * 2.
        ("mamba:8*3,full:8", {}, 300, 1, 45, 45),
        # Hits inside a block: at the first unit 4 is hit. Attention copies its first block: 38 + 1. Of each Mamba
        # group the state found, its copy and the next one are held: 3 * 3.
        ("mamba:8*3,full:8", {"match_unit": 4}, 300, 1, 45, 49),
        # Without prefix caching a prompt within the budget is one chunk: one state in each Mamba group.
        ("mamba:8*3,full:8", {"enable_prefix_caching": False}, 300, 1, 42, 42),
        # A window of 9 in chunks of 8: what the engine asks for at admission is its own cap,
        # ceil((9 - 1 + 8) / 4) + 1 = 5 blocks, whatever the prompt's length.
        ("swa:4:window=9", {"max_num_batched_tokens": 8}, 400, 1, 6, 6),
        # Chunks of local attention: ceil((16 + 8) / 8) = 3, beside 13 blocks of full attention.
        ("chunked:8:window=16,full:8", {"max_num_batched_tokens": 8}, 100, 1, 17, 17),
        # Outside align a Mamba table grows by blocks, of which admission asks for all.
        ("mamba:8:mode=none*2,full:8", {"enable_prefix_caching": False}, 64, 1, 25, 25),
    ],
)
def test_pools_worked_out_by_hand(
    groups: str, settings_: dict[str, int], prompt: int, output: int, alone: int, on_hit: int
) -> None:
    config = EngineConfig(groups=parse_groups(groups), **settings_)  # type: ignore[arg-type]
    assert pool_of(config, prompt, output) == (alone, on_hit)
    assert not in_pool(config, alone, one(prompt, output)).refused
    assert in_pool(config, alone - 1, one(prompt, output)).refused == (0,)


@st.composite
def engines(draw: st.DrawFn) -> EngineConfig:
    groups = parse_groups(draw(st.sampled_from(LAYOUTS)))
    sizes = [group.block_size for group in groups]
    several = len(groups) > 1 or groups[0].count > 1
    return EngineConfig(
        groups=groups,
        version=draw(st.sampled_from(["0.33.0", "0.33.0", "0.31.0", "0.29.0"])),
        match_unit=draw(st.sampled_from([None, 2, 4])) if several else None,
        max_num_batched_tokens=draw(st.sampled_from([max(sizes), 16, 30, 8192])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 13])),
        retention_interval=draw(st.sampled_from([0, None])),
        drafter=draw(st.sampled_from([None, None, Drafter("mtp", 2), Drafter("eagle", 1, 1, True)])),
        watermark=draw(st.sampled_from([0.0, 0.1])),
        enable_prefix_caching=draw(st.booleans()),
        scheduling=draw(st.sampled_from(["sync", "async"])),
    )


@settings(max_examples=250, deadline=None)
@given(engines(), st.integers(1, 100), st.integers(1, 30))
def test_the_replay_admits_in_that_pool_and_not_in_one_less(
    config: EngineConfig, prompt: int, output: int
) -> None:
    """With one block less it is refused, or it is admitted and preempts itself (and then may find part of its work
    in the cache). Every smaller pool comes to an end, too."""
    try:
        alone, on_hit = pool_of(config, prompt, output)
    except EngineRefusal:
        return
    enough = in_pool(config, alone, one(prompt, output))
    assert (enough.refused, enough.preemptions.tolist()) == ((), [0])
    less = in_pool(config, alone - 1, one(prompt, output))
    assert less.refused or less.preemptions[0]
    assert not in_pool(config, max(alone, on_hit), one(prompt, output, times=2)).refused
    for num_blocks in range(2, alone - 1, max(1, alone // 6)):
        in_pool(config, num_blocks, one(prompt, output))


@settings(max_examples=60, deadline=None)
@given(engines(), st.integers(1, 100))
def test_counted_admission_refuses_a_prompt_of_one_chunk_strictly(config: EngineConfig, prompt: int) -> None:
    config = replace(
        config,
        max_num_batched_tokens=8192,
        long_prefill_token_threshold=0,
        enable_prefix_caching=False,
        drafter=None,
    )
    try:
        alone, _ = pool_of(config, prompt)
    except EngineRefusal:
        return
    assert in_pool(config, alone - 1, one(prompt)).refused == (0,)


@pytest.mark.parametrize("scheduling", ["sync", "async"])
@pytest.mark.parametrize("arrivals", ["sequential", "trace"])
def test_a_request_that_preempts_itself_for_ever_is_refused(scheduling: str, arrivals: str) -> None:
    """52 tokens in chunks of 9 of an uncached model: admission asks for one state a group, the second chunk for two."""
    config = EngineConfig(
        groups=parse_groups("mamba:8*2,full:8"),
        version="0.29.0",
        long_prefill_token_threshold=9,
        enable_prefix_caching=False,
        scheduling=scheduling,  # type: ignore[arg-type]
    )
    alone, _ = pool_of(config, 52)
    inputs = replace(one(52, times=2), arrival=np.zeros(2))
    result = replay(replace(config, num_blocks=alone - 1), inputs, arrivals=arrivals)  # type: ignore[arg-type]
    assert result.refused == (0, 1)
    assert result.hit_tokens.tolist() == [0, 0]
