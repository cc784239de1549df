"""Pools, weights, workloads and calibration on their own."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kvtune.analyzers.layout import EngineConfig, KVCacheGroup  # noqa: E402
from kvtune.gpu_probe.engine.calibrate import Design, calibrate, designed_batches, shape_of  # noqa: E402
from kvtune.gpu_probe.engine.pools import BlockCopy, CachePools, assign_layers, pool_page_bytes  # noqa: E402
from kvtune.gpu_probe.engine.probe import Probe  # noqa: E402
from kvtune.gpu_probe.engine.spec import keep_layers  # noqa: E402
from kvtune.gpu_probe.engine.step import Segment, build_step  # noqa: E402
from kvtune.gpu_probe.engine.weights import synthetic_weights  # noqa: E402
from kvtune.tokenization.errors import UnusableInputError  # noqa: E402

GROUPS = (KVCacheGroup("mamba", 64), KVCacheGroup("mamba", 64), KVCacheGroup("full", 64))


def test_layers_are_dealt_to_like_groups_in_turn(engine):
    spec = engine.spec(("delta", "delta", "mamba", "full", "window"), experts=False)
    layers = assign_layers(spec, GROUPS)
    assert [group.blocks for group in layers] == [
        (0, 4),
        (2,),
        (6, 8),
    ]  # no window group: windows live with `full`
    with pytest.raises(UnusableInputError, match="no full group"):
        assign_layers(spec, GROUPS[:2])


def test_one_pool_of_pages_is_shared_by_all_groups(engine):
    """A page is as large as its largest view, in whole kernel pages; by hand for one delta net and one attention.

    Keys and values: 2 * 64 tokens * 2 heads * 16 * 4 bytes = 16,384. State: 3 * 128 * 4 bytes of conv inputs and
    4 * 16 * 16 * 4 bytes of state, well below.
    """
    spec = engine.spec(("delta", "full"), experts=False)
    layers = assign_layers(spec, GROUPS[1:])
    assert pool_page_bytes(spec, layers, dtype=torch.float32) == 16_384
    pools = CachePools(spec, layers, 4, dtype=torch.float32)
    assert pools.kv(2).keys.data_ptr() == pools.state(0).conv.data_ptr()
    pools.state(0).state[2] = 1.0
    assert pools.kv(2).pages[pools.kv(2).stride * 2 :].count_nonzero() > 0


def test_copies_move_the_used_part_and_nothing_else(engine):
    spec = engine.spec(("full",), experts=False)
    layers = assign_layers(spec, GROUPS[2:])
    pools = CachePools(spec, layers, 4, dtype=torch.float32)
    view = pools.kv(0)
    view.keys[1:] = torch.arange(3.0)[:, None, None, None]
    view.values[1:] = 0.0
    copied = pools.copy([BlockCopy(0, 3, 1, 26)])
    assert copied == 2 * 26 * 2 * 16 * 4
    assert (view.keys[1, :26] == 2).all()
    assert (view.keys[1, 26:] == 0).all()
    assert (view.keys[2] == 1).all()


def test_a_copy_that_the_step_overwrites_is_read_from_its_source(engine):
    """A consumer at 70 in block 64: its private copy of the state would be overwritten at once."""
    spec = engine.spec(("delta",), experts=False)
    layers = assign_layers(spec, GROUPS[:1])
    share = Segment(np.zeros(5, np.int64), 70, (np.array([0, 9]),))
    step, copies = build_step([share], layers, copies=[BlockCopy(0, 4, 9, 6)])
    assert copies == []
    assert step.state_source[0].tolist() == [4]
    assert step.state_target[0].tolist() == [9]
    # Where the step goes on into another block, the copy stays a copy.
    longer = Segment(np.zeros(90, np.int64), 70, (np.array([0, 9, 7]),))
    step, copies = build_step([longer], layers, copies=[BlockCopy(0, 4, 9, 6)])
    assert copies == [BlockCopy(0, 4, 9, 6)]
    assert step.state_source[0].tolist() == [9]
    assert step.state_target[0].tolist() == [7]


def test_fewer_layers_have_the_same_weights(engine):
    spec = engine.spec(("delta", "delta", "delta", "full"))
    kept = keep_layers(spec, 1)
    few, all_of_them = (synthetic_weights(each, 7, torch.float32, torch.float32) for each in (kept, spec))
    assert set(few) < set(all_of_them)
    assert all(torch.equal(value, all_of_them[name]) for name, value in few.items())
    other = synthetic_weights(kept, 8, torch.float32, torch.float32)
    assert not torch.equal(few["embedding"], other["embedding"])


def test_synthetic_logits_have_unit_size(engine):
    rig = engine.Rig(seed=3)
    ids = np.random.default_rng(0).integers(0, engine.vocab, 100)
    logits = rig.run((ids, 0, rig.tables(100)))
    assert 0.7 < float(logits.std()) < 1.4


def test_calibration_times_every_batch_by_its_shape(engine):
    spec = engine.spec(("delta", "full"), experts=False)
    config = EngineConfig(groups=GROUPS[1:])
    probe = Probe(spec, config, synthetic_weights(spec, 0, torch.float32, torch.float32))
    batches = [[(0, count)] for count in (2, 8, 16, 32)] + [[(64, 1)] * count for count in range(1, 9)]
    ticks = iter(np.arange(10_000) * 0.5)
    design = Design(batches, [[(0, 4)], [(64, 1)] * 3])
    found = calibrate(probe, design, repeats=1, clock=lambda: float(next(ticks)))
    assert found.seconds == (0.5,) * 12
    assert found.shapes[4] == found.shapes[4]._replace(decode_tokens=1, decode_context=64)
    assert found.cost.info.error.mean < 1e-6  # every batch took the same: all of it is the step's own cost
    assert len(designed_batches()) >= 30


def test_shapes_count_what_is_attended():
    shape = shape_of([(10, 3), (20, 1), (0, 2)])
    assert shape.prefill_tokens == 5
    assert shape.attended_pairs == (11 + 12 + 13) + (1 + 2)
    assert (shape.decode_tokens, shape.decode_context, shape.prefill_requests) == (1, 20, 2)
