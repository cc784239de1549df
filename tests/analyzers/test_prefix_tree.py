"""The prefix tree against comparing every pair of sequences."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtune.analyzers.prefix_tree import KEY_SHIFT, PrefixTree, build_prefix_tree

Sequences = list[tuple[int, list[int]]]


@st.composite
def related_sequences(draw: st.DrawFn) -> Sequences:
    """(namespace, tokens) of sequences that mostly continue a piece of an earlier one."""
    sequences: Sequences = []
    for _ in range(draw(st.integers(1, 10))):
        tokens: list[int] = []
        if sequences and draw(st.booleans()):
            _, earlier = draw(st.sampled_from(sequences))
            tokens = earlier[: draw(st.integers(0, len(earlier)))]
        tokens = tokens + draw(st.lists(st.integers(0, 2), min_size=0 if tokens else 1, max_size=8))
        sequences.append((draw(st.integers(0, 1)), tokens))
    return sequences


def build(sequences: Sequences) -> PrefixTree:
    offsets = np.cumsum([0] + [len(tokens) for _, tokens in sequences]).astype(np.int64)
    tokens = np.array([token for _, tokens in sequences for token in tokens], dtype=np.uint32)
    namespace = np.array([space for space, _ in sequences], dtype=np.int32)
    return build_prefix_tree(tokens, offsets, namespace)


def common(one: list[int], other: list[int]) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


@given(related_sequences())
@settings(max_examples=300, deadline=None)
def test_equals_comparing_every_pair(sequences: Sequences) -> None:
    tree = build(sequences)
    for index, (space, tokens) in enumerate(sequences):
        lengths = {
            other: common(tokens, sequences[other][1])
            for other in range(len(sequences))
            if other != index and sequences[other][0] == space
        }
        earlier = {other: length for other, length in lengths.items() if other < index}
        longest = max(earlier.values(), default=0)
        latest = max((other for other, length in earlier.items() if length == longest), default=-1)
        assert tree.shared[index] == longest
        assert tree.shared_with[index] == (latest if longest else -1)
        assert tree.repeated[index] == max((n for o, n in lengths.items() if o > index), default=0)


@given(related_sequences(), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_keys_name_prefixes(sequences: Sequences, step: int) -> None:
    tree = build(sequences)
    owner: dict[tuple[int, tuple[int, ...]], int] = {}
    for index, (space, tokens) in enumerate(sequences):
        path = tree.paths[index]
        for position in range(1, len(tokens) + 1):
            first = owner.setdefault((space, tuple(tokens[:position])), index)
            assert path.key(position) == (first << KEY_SHIFT) + position
        positions = range(step, len(tokens) + 1, step)
        assert path.keys(positions) == [path.key(position) for position in positions]


def test_the_same_span_at_another_offset_shares_nothing() -> None:
    tree = build([(0, [1, 2, 3, 4]), (0, [9, 1, 2, 3, 4])])
    assert tree.shared.tolist() == [0, 0]


def test_a_partial_last_block_is_no_full_match() -> None:
    # Two prompts of 1,200 tokens with equal hashes of 512-token blocks: the third block holds 176 tokens, and
    # what a partial block's hash covers is not known to be the same prefix of a full block.
    tree = build_prefix_tree(
        np.array([7, 8, 9, 7, 8, 9], dtype=np.uint32),
        np.array([0, 3, 6], dtype=np.int64),
        np.zeros(2, dtype=np.int32),
        span=512,
        lengths=np.array([1200, 1200], dtype=np.int64),
    )
    assert tree.shared.tolist() == [0, 1024]
    assert tree.repeated.tolist() == [1024, 0]
    assert tree.paths[1].key(1024) == tree.paths[0].key(1024)
    assert tree.paths[1].key(1200) != tree.paths[0].key(1200)
