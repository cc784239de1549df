"""The whole decoder: shares, batches and caches must not change a token's logits; broken caches must."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kvtune.gpu_probe.engine.grid import ExactGrid  # noqa: E402
from kvtune.gpu_probe.engine.pools import BlockCopy  # noqa: E402

TOLERANCE = {torch.float64: 1e-11, torch.float32: 5e-5}
RULES = ("scan_grid", "chunk_replay", "attention_grid", "matmul_tile", "padded_rows")


def sizes(rng):
    return lambda: int(rng.choice([0, 1, 1, 1, 2, 15, 17, 64, 65, 120]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_random_shares_equal_the_reference(engine, dtype):
    rng = np.random.default_rng(1)
    sequences = [rng.integers(0, engine.vocab, length) for length in (210, 130, 64)]
    slow = engine.Rig(dtype=torch.float64, reference=True)
    wanted = [slow.run((ids, 0, slow.tables(len(ids)))) for ids in sequences]
    assert 0.5 < float(wanted[0].std()) < 2
    for got, want in zip(engine.Rig(dtype=dtype).schedule(sequences, sizes(rng), rng), wanted, strict=True):
        assert float((got - want).abs().max()) <= TOLERANCE[dtype]


def exact_difference(engine, dtype, grid, seed):
    """Tokens whose logits differ in any bit between random shares in batches and one share each."""
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(0, engine.vocab, length) for length in (600, 290, 70)]
    whole, cut = (engine.Rig(dtype=dtype, grid=grid) for _ in range(2))
    wanted = [whole.run((ids, 0, whole.tables(len(ids)))) for ids in sequences]
    got = cut.schedule(sequences, sizes(rng), rng)
    return sum(int((one != other).any(1).sum()) for one, other in zip(got, wanted, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", [0, 1])
def test_exact_runs_are_equal_bit_for_bit(engine, dtype, seed):
    assert exact_difference(engine, dtype, ExactGrid(), seed) == 0


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_the_grid_is_needed(engine, rule):
    grid = dataclasses.replace(ExactGrid(), **{rule: False})
    assert exact_difference(engine, torch.float32, grid, 0) > 0


class PartialHit:
    """A producer of 100 tokens, then a consumer that shares its first 90: block 64, unit 10.

    Mamba block 1 of the producer holds the state at 90 (a chunk ended there), then goes on to 100; its content at
    90 is moved to a copy first, as the bookkeeping does.
    """

    def __init__(self, engine, **options):
        self.rng = np.random.default_rng(5)
        self.rig = engine.Rig(**options)
        self.vocab = engine.vocab
        self.first = self.rng.integers(0, engine.vocab, 100)
        self.second = np.concatenate([self.first[:90], self.rng.integers(0, engine.vocab, 70)])
        self.producer = self.rig.tables(100)
        self.kept = tuple(table.copy() for table in self.producer)
        self.rig.run((self.first[:90], 0, self.producer))
        checkpoint = self.rig.free.pop()
        move = BlockCopy(0, int(self.producer[0][1]), checkpoint, 0)
        self.rig.run((self.first[90:], 90, self.producer), copies=[move])
        self.kept[0][1] = checkpoint

    def consume(self, tables=None, copies=None, start=90, shares=(70,)):
        """Logits of the consumer's own tokens, and its tables."""
        own = self.rig.tables(160)
        if tables is None:
            tables = tuple(
                np.concatenate([kept[:1], mine[1:]]) for kept, mine in zip(self.kept, own, strict=True)
            )
        if copies is None:
            copies = [
                BlockCopy(index, int(kept[1]), int(table[1]), 26)
                for index, (kept, table) in enumerate(zip(self.kept, tables, strict=True))
            ]
        parts, at = [], start
        for count in shares:
            parts.append(self.rig.run((self.second[at : at + count], at, tables), copies=copies))
            copies, at = (), at + count
        return torch.cat(parts), tables

    def wanted(self):
        fresh = self.rig.tables(160)
        return self.rig.run((self.second, 0, fresh))[90:]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_partial_hit_with_copies_equals_recomputation(engine, dtype):
    case = PartialHit(engine, dtype=dtype)
    got, _ = case.consume(shares=(38, 1, 1, 30))
    assert float((got - case.wanted()).abs().max()) <= TOLERANCE[dtype]
    # A second consumer of the same block, and the producer going on: nobody wrote into what is shared.
    again, _ = case.consume()
    assert float((again - case.wanted()).abs().max()) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_partial_hit_inside_a_chunk_is_exact(engine, dtype):
    case = PartialHit(engine, dtype=dtype, grid=ExactGrid())
    got, _ = case.consume(shares=(1, 60, 1, 8))
    assert torch.equal(got, case.wanted())


def test_the_producers_blocks_are_unchanged_after_the_consumer(engine):
    case = PartialHit(engine)
    before = [view.clone() for view in snapshot(case)]
    case.consume()
    for one, other in zip(snapshot(case), before, strict=True):
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


def snapshot(case):
    """Every tensor of the producer's blocks."""
    for index, group in enumerate(case.rig.layers):
        for block in group.blocks:
            ids = torch.as_tensor(case.kept[index])
            if group.recurrent:
                view = case.rig.pools.state(block)
                yield from (tensor[ids] for tensor in (view.conv, view.state) if tensor is not None)
            else:
                view = case.rig.pools.kv(block)
                yield from (view.keys[ids], view.values[ids])


def broken_conv(case):
    for block in case.rig.layers[0].blocks:
        case.rig.pools.state(block).conv[case.kept[0][1]] = 0


def broken_state(case):
    for block in case.rig.layers[0].blocks:
        state = case.rig.pools.state(block).state
        if state is not None:
            state[case.kept[0][1]] = 0


def state_one_token_off(case):
    """The state of 91 tokens where that of 90 is wanted."""
    off = case.rig.tables(100)
    case.rig.run((case.first[:91], 0, off))
    case.kept[0][1] = off[0][1]


def wrong_block(case):
    other = case.rig.tables(100)
    case.rig.run((case.rng.integers(0, case.vocab, 100), 0, other))
    case.kept[2][0] = other[2][0]


@pytest.mark.parametrize("damage", [broken_conv, broken_state, state_one_token_off, wrong_block])
def test_damage_to_a_cache_shows(engine, damage):
    case = PartialHit(engine)
    damage(case)
    got, _ = case.consume()
    assert float((got - case.wanted()).abs().max()) >= 100 * TOLERANCE[torch.float32]


def test_a_missing_copy_shows(engine):
    """Two consumers write their own tokens into the block that they share: the first is read wrongly after."""
    case = PartialHit(engine)
    own = case.rig.tables(160)
    shared = tuple(np.concatenate([kept[:2], mine[2:]]) for kept, mine in zip(case.kept, own, strict=True))
    states = (own[0], *shared[1:])
    copies = [BlockCopy(0, int(case.kept[0][1]), int(own[0][1]), 26)]
    first, _ = case.consume(states, copies, shares=(20,))
    other = case.rng.integers(0, case.vocab, 20)
    mine = case.rig.tables(160)[0]
    case.rig.run(
        (other, 90, (mine, *shared[1:])), copies=[BlockCopy(0, int(case.kept[0][1]), int(mine[1]), 26)]
    )
    rest, _ = case.consume(states, (), start=110, shares=(50,))
    difference = float((torch.cat([first, rest]) - case.wanted()).abs().max())
    assert difference >= 100 * TOLERANCE[torch.float32]


@pytest.mark.parametrize("change", [{"window": 39}, {"window": 41}])
def test_a_window_off_by_one_shows(engine, change):
    rng = np.random.default_rng(2)
    ids = rng.integers(0, engine.vocab, 120)
    spec = engine.spec(("window", "full"), experts=False)
    blocks = [
        dataclasses.replace(block, operator=dataclasses.replace(block.operator, **change))
        if getattr(block.operator, "window", None)
        else block
        for block in spec.blocks
    ]
    right, wrong = engine.Rig(spec), engine.Rig(dataclasses.replace(spec, blocks=tuple(blocks)))
    one, other = (rig.run((ids, 0, rig.tables(120))) for rig in (right, wrong))
    assert float((one - other).abs().max()) >= 100 * TOLERANCE[torch.float32]


def test_positions_off_by_the_hit_show(engine):
    """A resumed share that counts its positions from zero, over the right keys."""
    case = PartialHit(engine)
    rotate = [block for block in case.rig.spec.blocks if getattr(block.operator, "rotary_dim", 0)]
    assert rotate
    from kvtune.gpu_probe.engine import model as module

    original = module.rotary_table

    def shifted(positions, rotary_dim, theta):
        return original(positions - 90, rotary_dim, theta)

    want = case.wanted()
    module.rotary_table = shifted
    try:
        got, _ = case.consume()
    finally:
        module.rotary_table = original
    assert float((got - want).abs().max()) >= 100 * TOLERANCE[torch.float32]


@pytest.mark.parametrize(
    ("block", "boundary"),
    [(528, 16), (528, 272), (528, 512), (528, 544), (1024, 128), (1024, 992), (1024, 1120)],
)
def test_hits_resume_at_boundaries_inside_real_blocks(engine, block, boundary):
    """A producer that stops at the boundary and goes on, two consumers of its block, in blocks that models have."""
    rng = np.random.default_rng(boundary)
    rig = engine.Rig(
        engine.spec(("delta", "mamba", "full", "conv"), experts=False), block=block, num_blocks=40
    )
    shared = rng.integers(0, engine.vocab, boundary)
    last = (boundary - 1) // block

    def table_of(kept, length):
        own = rig.tables(length)
        copies = []
        for index, (theirs, mine) in enumerate(zip(kept, own, strict=True)):
            mine[:last] = theirs[:last]
            if boundary % block:
                copies.append(BlockCopy(index, int(theirs[last]), int(mine[last]), boundary % block))
            else:
                mine[last] = theirs[last]
        return own, copies

    producer = rig.tables(boundary + 20)
    rig.run((shared, 0, producer))
    kept = tuple(table.copy() for table in producer)
    kept[0][last] = rig.free.pop()
    tail = rng.integers(0, engine.vocab, 20)
    move = [BlockCopy(0, int(producer[0][last]), int(kept[0][last]), 0)]
    rig.run((tail, boundary, producer), copies=move)
    for seed in range(2):
        own = np.random.default_rng(seed).integers(0, engine.vocab, 30)
        tables, copies = table_of(kept, boundary + 30)
        got = rig.run((own, boundary, tables), copies=copies)
        want = rig.run((np.concatenate([shared, own]), 0, rig.tables(boundary + 30)))[boundary:]
        assert float((got - want).abs().max()) <= TOLERANCE[torch.float32]
