"""The order in which blocks are handed out, worked out by hand."""

from __future__ import annotations

import pytest

from kvtune.analyzers.bookkeeping.block_pool import Block, BlockPool
from kvtune.analyzers.bookkeeping.prefix_index import PrefixIndex
from kvtune.analyzers.bookkeeping.roomy_pool import PoolTooSmallError, RoomyPool

KEY = 1 << 40


def ids(blocks: list[Block]) -> list[int]:
    return [block.block_id for block in blocks]


def test_never_used_ids_come_in_order_after_the_null_block() -> None:
    pool = BlockPool(6)
    assert ids(pool.allocate(2)) == [1, 2]
    assert ids(pool.allocate(1)) == [3]
    assert pool.num_free == 2


def test_unkeyed_blocks_come_back_first_and_keyed_ones_last() -> None:
    pool, index = BlockPool(7), PrefixIndex(0)
    one, two, three, four = pool.allocate(4)
    index.insert(KEY + 8, two, 8)
    index.insert(KEY + 16, three, 16)
    pool.free([four, three, two, one])  # a table from its end: 4 and 1 have no key
    assert pool.num_free == 6
    assert ids(pool.allocate(4)) == [4, 1, 5, 6]
    assert pool.evicted_blocks == 0
    assert pool.allocate(1) == [three]
    assert (pool.evicted_blocks, index.first(KEY + 16), index.first(KEY + 8)) == (1, None, two)


def test_the_last_freed_group_of_unkeyed_blocks_is_used_first() -> None:
    pool = BlockPool(9)
    a, b, c, d = pool.allocate(4)
    pool.free([b, a])
    pool.free([d, c])
    assert ids(pool.allocate(5)) == [4, 3, 2, 1, 5]


def test_a_hit_takes_a_block_out_of_the_queue() -> None:
    pool, index = BlockPool(4), PrefixIndex(0)
    one, two, three = pool.allocate(3)
    for place, block in enumerate((one, two, three)):
        index.insert(KEY + place + 1, block, place + 1)
    pool.free([one, two, three])
    pool.touch([None, one])
    assert pool.num_free == 2
    assert pool.allocate(1) == [two]
    pool.free([one])
    assert pool.allocate(2) == [three, one]


def test_a_block_is_freed_when_its_last_reference_goes() -> None:
    pool = BlockPool(3)
    [block] = pool.allocate(1)
    block.ref_count += 1
    pool.free([block])
    assert pool.num_free == 1
    pool.free([block])
    assert pool.num_free == 2


def test_more_than_there_is_is_a_bug_of_the_caller() -> None:
    with pytest.raises(RuntimeError, match="3 blocks asked"):
        BlockPool(3).allocate(3)


def test_an_unlimited_pool_never_evicts() -> None:
    pool = BlockPool(None)
    index = PrefixIndex(0)
    for place in range(100):
        [block] = pool.allocate(1)
        index.insert(KEY + place, block, place)
        pool.free([block])
    assert (pool.num_used_ids, pool.evicted_blocks) == (100, 0)


def test_a_roomy_pool_counts_until_a_keyed_block_would_go() -> None:
    pool, index = RoomyPool(8), PrefixIndex(0)
    [row] = pool.allocate(1, 3)
    index.insert(KEY, row, 1)
    pool.free([row])
    assert pool.num_free == 7
    [other] = pool.allocate(1, 3)
    pool.free([other])  # its three ids have no key: they are used again
    pool.allocate(4, 1)
    with pytest.raises(PoolTooSmallError):
        pool.allocate(1, 1)


class TestIndex:
    def test_a_key_finds_the_block_that_had_it_first(self) -> None:
        index = PrefixIndex(0)
        first, second = Block(1), Block(2)
        index.insert(KEY, first, 16)
        index.insert(KEY, second, 16)
        assert index.first(KEY) is first
        index.forget(first)
        assert index.first(KEY) is second
        assert first.key is None

    def test_all_keys_of_a_block_go_together(self) -> None:
        index = PrefixIndex(0)
        block = Block(1)
        index.insert(KEY + 32, block, 32)
        index.insert(KEY + 24, block, 24)
        assert (block.key, block.aliases) == (KEY + 32, [KEY + 24])
        index.forget(block)
        assert not index.blocks
        assert not index.positions

    def test_a_longer_prefix_replaces_a_shorter_one_and_bears_its_aliases(self) -> None:
        index = PrefixIndex(0)
        block = Block(1)
        index.key_partial(KEY + 8, block, 8)
        index.key_partial(KEY + 16, block, 16)
        assert list(index.blocks) == [KEY + 16]
        index.key_partial(KEY + 8, block, 8)
        assert list(index.blocks) == [KEY + 16, KEY + 8]

    def test_moved_keys_lead_to_the_copy(self) -> None:
        index = PrefixIndex(0)
        source, target = Block(1), Block(2)
        index.insert(KEY + 8, source, 8)
        index.move(source, target)
        assert (index.first(KEY + 8), source.key, target.key_tokens) == (target, None, 8)

    def test_the_highest_position_of_an_owner(self) -> None:
        index = PrefixIndex(0)
        for position in (16, 48, 32):
            index.insert(KEY + position, Block(position), position)
        assert index.highest(KEY, 0, 47) == 32
        assert index.highest(KEY, 32, 47) == 0
        assert index.highest(2 * KEY, 0, 99) == 0

    def test_positions_of_whole_blocks_need_not_be_kept(self) -> None:
        index = PrefixIndex(0, except_multiples_of=32, lookahead=1)
        index.insert(KEY + 33, Block(1), 32)
        index.insert(KEY + 49, Block(2), 48)
        assert index.positions == {KEY: [49]}
