"""Each loss by a case small enough to work out by hand, and their sum on random traffic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtune.analyzers.layout import Drafter, EngineConfig, parse_groups
from kvtune.analyzers.loss_kinds import LOSSES
from kvtune.analyzers.losses import losses_by_request
from kvtune.analyzers.replay import replay
from tests.analyzers.bookkeeping.drive import inputs_of

DROPPING = Drafter("eagle", 1, disable_lookahead_block_hashes=True)
LOOKING_AHEAD = Drafter("eagle", 1)


def stream(number: int, length: int) -> list[int]:
    return [number * 1000 + place for place in range(length)]


def shared_with_earlier(prompts: list[list[int]]) -> list[int]:
    """The longest prefix that each prompt shares with an earlier one; its last token is always computed."""
    lengths = []
    for number, prompt in enumerate(prompts):
        longest = 0
        for earlier in prompts[:number]:
            same = 0
            while same < min(len(earlier), len(prompt)) and earlier[same] == prompt[same]:
                same += 1
            longest = max(longest, same)
        lengths.append(min(longest, len(prompt) - 1))
    return lengths


def losses_of(prompts: list[list[int]], groups: str, **settings: object) -> list[dict[str, int]]:
    """Per request, the losses that are not zero, and the hit."""
    inputs, _ = inputs_of(prompts, [1] * len(prompts))
    config = EngineConfig(groups=parse_groups(groups), **settings)  # type: ignore[arg-type]
    shared = np.array(shared_with_earlier(prompts))
    losses = losses_by_request(config, inputs, None, shared)
    hits = replay(config, inputs).hit_tokens
    assert tuple(losses) == LOSSES
    assert (sum(losses.values()) + hits == shared).all()
    return [
        {name: int(values[place]) for name, values in {**losses, "hit": hits}.items() if values[place]}
        for place in range(len(prompts))
    ]


def test_granularity_is_what_the_grid_cuts_off() -> None:
    """10 tokens are shared, of which blocks of 4 cover 8."""
    shared = stream(1, 10)
    assert losses_of([shared + stream(2, 5), shared + stream(3, 5)], "full:4")[1] == {
        "granularity": 2,
        "hit": 8,
    }


def test_no_state_was_kept_where_the_chunk_ran_past_the_shared_text() -> None:
    """Attention has the first 12 tokens; the first prompt left its only Mamba states at 20."""
    shared = stream(1, 12)
    found = losses_of([shared + stream(2, 9), shared + stream(3, 9)], "mamba:4,full:4", retention_interval=0)
    assert found[1] == {"no_recurrent_state": 12}


def test_an_evicted_block_was_there_once() -> None:
    """6 usable blocks. The first prompt leaves 3, the second takes all 6."""
    found = losses_of([stream(1, 9), stream(2, 21), stream(1, 9)], "full:4", num_blocks=7)
    assert found[2] == {"evicted": 8}


def test_a_refused_prompt_could_not_use_what_it_shares() -> None:
    found = losses_of([stream(1, 9), stream(1, 9) + stream(2, 40)], "full:4", num_blocks=7)
    assert found[1] == {"granularity": 1, "evicted": 8}


def test_the_drop_gives_up_a_block() -> None:
    found = losses_of([stream(1, 17), stream(1, 17)], "full:4", drafter=DROPPING)
    assert found[1]["speculative_drop"] == 4


def test_a_lookahead_cannot_prove_a_block_before_other_text() -> None:
    """The block that ends where the prompts part has another token next, so its hash differs."""
    shared = stream(1, 8)
    found = losses_of([shared + stream(2, 5), shared + stream(3, 5)], "full:4", drafter=LOOKING_AHEAD)
    assert found[1] == {"speculative_drop": 4, "hit": 4}


def test_a_window_does_not_reach_back() -> None:
    """Both groups share 16 tokens; the sliding window kept the end of the first prompt only."""
    shared = stream(1, 16)
    first = shared + stream(2, 40)
    found = losses_of([first, shared + stream(3, 4)], "full:4,swa:4:window=8", retention_interval=0)
    assert found[1] == {"window": 16}


PROMPTS = st.lists(
    st.lists(st.sampled_from("ab"), min_size=2, max_size=40).map(lambda letters: [ord(x) for x in letters]),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize(
    ("groups", "settings"),
    [
        ("full:4", {"num_blocks": 14}),
        ("mamba:8*2,full:8", {"match_unit": 4, "num_blocks": 24, "retention_interval": 0}),
        ("mamba:4,full:4", {"drafter": DROPPING, "retention_interval": 8}),
        ("full:8,mamba:8", {"match_unit": 2, "drafter": LOOKING_AHEAD}),
        ("full:4,swa:4:window=6", {"retention_interval": 0}),
    ],
)
@given(prompts=PROMPTS)
def test_they_sum_to_what_was_shared(
    groups: str, settings: dict[str, object], prompts: list[list[int]]
) -> None:
    for found in losses_of(prompts, groups, **settings):
        assert all(tokens > 0 for tokens in found.values())
