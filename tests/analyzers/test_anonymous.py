"""Anonymous traces keep what prompts share, and nothing that they say."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvtune.analyzers.anonymous import anonymous_lines
from kvtune.analyzers.prefix_tree import build_prefix_tree
from kvtune.tokenization.trace import TokenTrace


def make(prompts: list[list[int]], namespaces: list[int], **known: object) -> TokenTrace:
    lengths = [len(prompt) for prompt in prompts]
    return TokenTrace(
        tokens=np.array([token for prompt in prompts for token in prompt], dtype=np.uint32),
        offsets=np.cumsum([0, *lengths]),
        prompt_tokens=np.array(lengths),
        arrival=known.pop("arrival", np.full(len(prompts), np.nan)),
        namespace=np.array(namespaces, dtype=np.int32),
        ids=[f"secret-{index}" for index in range(len(prompts))],
        **known,
    )


def test_an_id_is_the_request_that_had_the_prefix_first() -> None:
    trace = make(
        [[7, 9, 7, 2], [7, 9, 5], [2**32 - 1, 9, 7]],
        [0, 0, 1],
        arrival=np.array([100.5, 101.0, 103.25]),
        output_tokens=np.array([5, -1, 0]),
        sessions=["alice", None, "bob"],
        servers=["10.0.0.1", "10.0.0.2", "10.0.0.1"],
    )
    assert [json.loads(line) for line in anonymous_lines(trace)] == [
        {
            "request_id": "r0",
            "timestamp": 0.0,
            "session": "s0",
            "server": "v0",
            "output_tokens": 5,
            "token_ids": [0, 0, 0, 0],
        },
        {"request_id": "r1", "timestamp": 0.5, "server": "v1", "token_ids": [0, 0, 1]},
        {
            "request_id": "r2",
            "timestamp": 2.75,
            "session": "s1",
            "server": "v0",
            "cache_salt": "n1",
            "output_tokens": 0,
            "token_ids": [2, 2, 2],
        },
    ]


def test_equal_tokens_behind_different_prefixes_do_not_stay_equal() -> None:
    lines = [json.loads(line) for line in anonymous_lines(make([[1, 5, 5, 5], [2, 5, 5, 5]], [0, 0]))]
    assert [line["token_ids"] for line in lines] == [[0, 0, 0, 0], [1, 1, 1, 1]]


def test_block_hashes_stay_block_hashes() -> None:
    trace = TokenTrace(
        tokens=np.array([40, 41, 40], dtype=np.uint32),
        offsets=np.array([0, 2, 3]),
        prompt_tokens=np.array([700, 512]),
        arrival=np.array([1.0, 1.5]),
        namespace=np.zeros(2, dtype=np.int32),
        ids=["a", "b"],
        span=512,
    )
    assert [json.loads(line) for line in anonymous_lines(trace)] == [
        {"request_id": "r0", "timestamp": 0.0, "input_length": 700, "block_size": 512, "hash_ids": [0, 1]},
        {"request_id": "r1", "timestamp": 500.0, "input_length": 512, "block_size": 512, "hash_ids": [0]},
    ]


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 1)),
        min_size=1,
        max_size=12,
    )
)
def test_what_prompts_share_is_kept(requests: list[tuple[list[int], int]]) -> None:
    trace = make([prompt for prompt, _ in requests], [space for _, space in requests])
    lines = [json.loads(line) for line in anonymous_lines(trace)]
    spaces = {line.get("cache_salt", "") for line in lines}
    numbers = {name: number for number, name in enumerate(sorted(spaces))}
    again = make(
        [line["token_ids"] for line in lines], [numbers[line.get("cache_salt", "")] for line in lines]
    )
    before, after = (
        build_prefix_tree(one.tokens, one.offsets, one.namespace).shared.tolist() for one in (trace, again)
    )
    assert after == before
