"""A ring holds one block a request, whatever its length, and takes no part in hits."""

from __future__ import annotations

import pytest

from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.replay import replay
from kvtune.analyzers.shared import find_shared_prefixes
from kvtune.analyzers.sweep import replay_input
from kvtune.tokenization.errors import UnusableInputError
from tests.analyzers.traces import trace_of


def test_one_block_a_request_for_its_whole_life() -> None:
    """A prompt of 60 tokens takes ceil(60 / 16) = 4 blocks of attention and one of the ring; as a group of whole blocks
    the ring of 8 would take 8. A pool of 6, null block included, is just enough."""
    trace = trace_of([list(range(60)), list(range(60))])
    inputs = replay_input(trace, find_shared_prefixes(trace, "none"))
    ring = EngineConfig(groups=parse_groups("ring:8,full:16"), num_blocks=6)
    result = replay(ring, inputs, check=True)
    assert result.refused == ()
    assert result.new_blocks.tolist()[0] == 5
    assert result.hit_tokens.tolist() == [0, 48]
    blocks = EngineConfig(groups=parse_groups("full:8:cacheable=no,full:16"), num_blocks=6)
    assert replay(blocks, inputs).refused == (0, 1)


def test_rings_are_read_and_never_cacheable() -> None:
    [ring, full] = parse_groups("ring:4*2,full:48")
    assert (ring.kind, ring.block_size, ring.count, ring.cacheable) == ("ring", 4, 2, False)
    assert full.cacheable
    with pytest.raises(UnusableInputError, match="no modifier of a ring group"):
        parse_groups("ring:4:window=8")
