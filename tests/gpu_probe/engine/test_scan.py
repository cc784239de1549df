"""Chunked scans against the token recurrence, cut at every offset (float64)."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kvtune.gpu_probe.engine.grid import FAST_SCAN_CHUNK, ExactGrid  # noqa: E402
from kvtune.gpu_probe.engine.ops.fast import FastOps  # noqa: E402
from kvtune.gpu_probe.engine.ops.reference import ReferenceOps  # noqa: E402
from kvtune.gpu_probe.engine.pools import StateLayer  # noqa: E402
from kvtune.gpu_probe.engine.step import Segment, build_step  # noqa: E402

BLOCK = 1 << 20


class Scan:
    """One recurrent layer on its own, with random inputs for `length` tokens."""

    def __init__(self, operator, kind, length, grid=None, seed=0):
        self.operator, self.kind, self.grid = operator, kind, grid
        generator = torch.Generator().manual_seed(seed)
        heads = operator.state_shape[0]
        self.inputs = torch.randn(length, operator.conv_size, generator=generator, dtype=torch.float64)
        self.rate = torch.rand(length, heads, generator=generator, dtype=torch.float64)
        self.gain = torch.rand(length, heads, generator=generator, dtype=torch.float64)
        self.decay = -torch.rand(heads, generator=generator, dtype=torch.float64) - 0.1

    def layer(self, slots=4):
        def empty(*shape):
            tensor = torch.full((slots, *shape), float("nan"), dtype=torch.float64)
            tensor[0] = 0
            return tensor

        op = self.operator
        chunk = self.grid.scan_chunk if self.grid else 1
        return StateLayer(
            empty(op.conv_kernel - 1, op.conv_size),
            empty(*op.state_shape),
            empty(chunk, op.conv_size + op.gate_size),
        )

    def run(self, ops, start, stop, cache, step):
        part = slice(start, stop)
        pad = (step.rows - step.num_tokens, 0)
        inputs, rate, gain = (
            torch.cat([tensor[part], tensor.new_zeros(pad[0], tensor.shape[1])])
            for tensor in (self.inputs, self.rate, self.gain)
        )
        if self.kind == "delta":
            out = ops.delta_rule(step, 0, self.operator, inputs, -rate, gain, cache)
        else:
            out = ops.state_space(step, 0, self.operator, inputs, rate, self.decay, cache)
        return out[: stop - start]


def one_sequence_step(start, stop, grid=None):
    from kvtune.analyzers.layout import KVCacheGroup
    from kvtune.gpu_probe.engine.pools import GroupLayers

    group = GroupLayers(KVCacheGroup("mamba", BLOCK), True, (0,))
    step, _ = build_step([Segment(np.zeros(stop - start, np.int64), start, ([1],))], [group], grid=grid)
    return step


@pytest.mark.parametrize("kind", ["delta", "mamba"])
def test_chunks_equal_the_recurrence_at_every_cut(engine, kind):
    length = 2 * FAST_SCAN_CHUNK["cpu"] + 20
    scan = Scan(engine.operators[kind], kind, length)
    slow = scan.layer()
    want = scan.run(ReferenceOps(), 0, length, slow, one_sequence_step(0, length))
    for cut in range(1, 2 * FAST_SCAN_CHUNK["cpu"] + 2):
        cache = scan.layer()
        ops = FastOps(torch.float64)
        first = scan.run(ops, 0, cut, cache, one_sequence_step(0, cut))
        second = scan.run(ops, cut, length, cache, one_sequence_step(cut, length))
        torch.testing.assert_close(torch.cat([first, second]), want, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(cache.state[1], slow.state[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["delta", "mamba"])
def test_exact_chunks_give_equal_bits_at_every_cut(engine, kind):
    grid = ExactGrid()
    length = 2 * grid.scan_chunk + 20
    scan = Scan(engine.operators[kind], kind, length, grid)
    whole = scan.layer()
    want = scan.run(FastOps(torch.float64, grid), 0, length, whole, one_sequence_step(0, length, grid))
    slow = scan.run(ReferenceOps(), 0, length, scan.layer(), one_sequence_step(0, length))
    torch.testing.assert_close(want, slow, rtol=1e-12, atol=1e-12)
    for cut in range(1, length):
        cache = scan.layer()
        ops = FastOps(torch.float64, grid)
        first = scan.run(ops, 0, cut, cache, one_sequence_step(0, cut, grid))
        second = scan.run(ops, cut, length, cache, one_sequence_step(cut, length, grid))
        assert torch.equal(torch.cat([first, second]), want)
        assert torch.equal(cache.state[1], whole.state[1])


def test_single_tokens_take_the_recurrence_in_one_batch(engine):
    """Three sequences at different positions, one token each: the reference's states to the last bits' size."""
    from kvtune.analyzers.layout import KVCacheGroup
    from kvtune.gpu_probe.engine.pools import GroupLayers

    scan = Scan(engine.operators["delta"], "delta", 3)
    group = GroupLayers(KVCacheGroup("mamba", BLOCK), True, (0,))
    segments = [Segment(np.zeros(1, np.int64), start, ([slot],)) for slot, start in ((1, 7), (2, 0), (3, 9))]
    results = []
    for ops in (ReferenceOps(), FastOps(torch.float64)):
        cache = scan.layer()
        cache.state[1:] = torch.arange(3.0, dtype=torch.float64)[:, None, None, None] + 0.5
        step, _ = build_step(segments, [group])
        results.append((scan.run(ops, 0, 3, cache, step), cache.state.clone()))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-12, atol=1e-12)
    assert results[0][1][0].abs().max() == 0  # the null block stays zero
