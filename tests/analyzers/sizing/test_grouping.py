"""Layers into groups, by hand: buckets, the 1.5 rule, equal pages, packed blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtune.analyzers.sizing.grouping import Grouping, LayerSpec, group_layers
from kvtune.tokenization.errors import UnusableInputError

FULL = LayerSpec("full", 16, 4096, ("full",))
SLIDING = LayerSpec("sliding_window", 16, 4096, ("sliding",), window=1024)
STATE = LayerSpec("mamba", 528, 4096, ("state",))


def counts(grouping: Grouping) -> list[tuple[str, int, int]]:
    return [(group.spec.kind, group.spec.block_size, group.layers) for group in grouping.groups]


def test_like_layers_are_one_group() -> None:
    assert counts(group_layers([FULL] * 36)) == [("full", 16, 36)]
    # Head sizes may differ: all need the same token slots.
    wide = replace(FULL, shape=("wide",), page_bytes=8192)
    assert counts(group_layers([FULL, wide])) == [("full", 16, 1)]
    assert counts(group_layers([STATE, replace(STATE, shape=("other",))])) == [("mamba", 528, 2)]


def test_groups_have_the_size_of_the_smallest_bucket_in_order_of_appearance() -> None:
    found = group_layers([STATE, STATE, STATE, FULL] * 8)
    assert counts(found) == [("mamba", 528, 8)] * 3 + [("full", 16, 8)]
    assert found.padding_layers == 0
    assert counts(group_layers([FULL, STATE, STATE, STATE] * 2))[0] == ("full", 16, 2)


def test_a_bucket_less_than_half_as_large_again_sets_the_size() -> None:
    """12 and 13 layers make two groups of 13 with one place empty, not 12 + 12 + 1; 12 and 18 do not."""
    found = group_layers([SLIDING] * 12 + [FULL] * 13)
    assert counts(found) == [("sliding_window", 16, 12), ("full", 16, 13)]
    assert (found.padding_layers, found.padding_pct) == (1, 8.33)
    assert (
        counts(group_layers([SLIDING] * 12 + [FULL] * 18))
        == [("sliding_window", 16, 12)] + [("full", 16, 9)] * 2
    )


def test_layers_are_dealt_round_robin() -> None:
    found = group_layers([STATE] * 48 + [replace(FULL, draft=index == 16) for index in range(17)])
    assert counts(found) == [("mamba", 528, 16)] * 3 + [("full", 16, 17)]
    assert (found.padding_layers, found.padding_pct) == (3, 6.25)
    assert [group.draft for group in found.groups] == [False, False, False, True]
    # The last of five layers in two groups is the first group's.
    drafted = group_layers([SLIDING] * 3 + [replace(FULL, draft=index == 4) for index in range(5)])
    assert [group.draft for group in drafted.groups if group.spec.kind == "full"] == [True, False]


def test_smaller_pages_get_larger_blocks_or_padding() -> None:
    half = replace(SLIDING, page_bytes=2048)
    assert counts(group_layers([half, FULL])) == [("sliding_window", 32, 1), ("full", 16, 1)]
    odd = replace(SLIDING, page_bytes=3000)
    assert counts(group_layers([odd, FULL])) == [("sliding_window", 16, 1), ("full", 16, 1)]
    small_state = replace(STATE, page_bytes=100)
    assert counts(group_layers([small_state, FULL])) == [("mamba", 528, 1), ("full", 16, 1)]


def test_a_latent_page_grows_by_whole_blocks_only() -> None:
    latent = replace(FULL, page_bytes=3000, latent=True)
    with pytest.raises(UnusableInputError, match="cannot give all layers one page size"):
        group_layers([latent, STATE])


def test_packed_layers_keep_their_pages() -> None:
    """34 states, 11 pairs of attention and indexer rows, 11 rings: 11 states fill the block that 11 pairs need."""
    attention = LayerSpec("full", 1152, 1_179_648, ("latent",), latent=True)
    rows = LayerSpec("full", 1152, 38_016, ("rows",), latent=True, tokens_per_state=4)
    ring = LayerSpec("full", 4, 2048, ("ring",), cacheable=False)
    state = LayerSpec("mamba", 1152, 1_179_648, ("state",))
    found = group_layers([state] * 23 + [rows, ring, attention] * 11 + [state] * 11, packed=True)
    assert counts(found) == [
        ("mamba", 1152, 9),
        ("mamba", 1152, 9),
        ("mamba", 1152, 8),
        ("mamba", 1152, 8),
        ("full", 1152, 11),
        ("full", 4, 11),
    ]
    assert found.groups[4].tokens_per_state == 4


@given(st.lists(st.sampled_from([FULL, SLIDING, STATE]), min_size=1, max_size=60))
def test_every_layer_is_in_one_group_and_groups_are_equal_but_for_padding(specs: list[LayerSpec]) -> None:
    found = group_layers(specs)
    assert sum(group.layers for group in found.groups) == len(specs)
    size = max(group.layers for group in found.groups)
    assert found.padding_layers == sum(size - group.layers for group in found.groups)
    order = [group.spec.kind for group in found.groups]
    assert list(dict.fromkeys(order)) == list(dict.fromkeys(spec.kind for spec in specs))
