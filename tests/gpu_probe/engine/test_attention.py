"""Paged attention against a brute-force mask: block and page sizes, shuffled tables, windows, unwritten slots."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kvtune.analyzers.layout import KVCacheGroup  # noqa: E402
from kvtune.gpu_probe.engine.grid import ExactGrid  # noqa: E402
from kvtune.gpu_probe.engine.ops.fast import FastOps  # noqa: E402
from kvtune.gpu_probe.engine.ops.reference import ReferenceOps  # noqa: E402
from kvtune.gpu_probe.engine.pools import CachePools, GroupLayers, kernel_page  # noqa: E402
from kvtune.gpu_probe.engine.spec import Attention, Block, ModelSpec  # noqa: E402
from kvtune.gpu_probe.engine.step import Segment, build_step  # noqa: E402


def dense(spec, query, key, value):
    """All positions at once under an explicit mask: [T, H, D]."""
    length = len(query)
    at = torch.arange(length)
    hidden = at[None] > at[:, None]
    if spec.window is not None:
        hidden |= at[None] <= at[:, None] - spec.window
    share = spec.num_heads // spec.num_kv_heads
    scores = torch.einsum("thd,shd->hts", query, key.repeat_interleave(share, 1)) * spec.scale
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hts,shd->thd", weights, value.repeat_interleave(share, 1))


@pytest.mark.parametrize(
    ("block", "window"),
    [
        (16, None),
        (64, None),
        (528, None),
        (784, 100),
        (1024, None),
        (528, 1),
        (64, 47),
        (16, 4096),
        (1024, 300),
        (40, 33),
    ],
)
@pytest.mark.parametrize("ops", ["fast", "exact", "reference"])
def test_shares_equal_a_dense_mask(block, window, ops):
    rng = np.random.default_rng(block)
    length = 1100 if block >= 528 else 330
    spec = Attention(6, 2, 16, 0.3, rotary_dim=0, window=window)
    model = ModelSpec("one", 96, 8, (Block("a", 0, spec),))
    kind = "full" if window is None else "sliding_window"
    layers = (GroupLayers(KVCacheGroup(kind, block, window=window), False, (0,)),)
    count = -(-length // block)
    pools = CachePools(model, layers, 2 * count + 1, dtype=torch.float64)
    pools.fill(float("nan"))
    grid = ExactGrid() if ops == "exact" else None
    run = ReferenceOps() if ops == "reference" else FastOps(torch.float64, grid)
    ids = rng.permutation(2 * count) + 1
    tables = (ids[:count], ids[count:])
    generator = torch.Generator().manual_seed(block)
    tensors = [
        [torch.randn(length, heads, 16, generator=generator, dtype=torch.float64) for heads in (6, 2, 2)]
        for _ in tables
    ]
    wanted = [dense(spec, *three) for three in tensors]
    done = [0, 0]
    # Ragged shares of two sequences in one step: prefill beside single tokens.
    for size in (1, 15, 257, 1, length):
        sizes = [min(size, length - done[0]), min(3 * size, length - done[1])]
        segments = [
            Segment(np.zeros(n, np.int64), at, (table,))
            for n, at, table in zip(sizes, done, tables, strict=True)
            if n
        ]
        owners = [index for index, n in enumerate(sizes) if n]
        if not owners:
            break
        step, _ = build_step(segments, layers, grid=grid)
        packed = [
            torch.cat(
                [tensors[index][part][done[index] : done[index] + sizes[index]] for index in owners]
                + [
                    torch.zeros(
                        step.rows - step.num_tokens, tensors[0][part].shape[1], 16, dtype=torch.float64
                    )
                ]
            )
            for part in range(3)
        ]
        out = run.attention(step, 0, spec, *packed, pools.kv(0))
        for index in owners:
            part, out = out[: sizes[index]], out[sizes[index] :]
            want = wanted[index][done[index] : done[index] + sizes[index]]
            torch.testing.assert_close(part, want, rtol=1e-11, atol=1e-11)
            done[index] += sizes[index]
    assert done == [length, length]
    assert pools.kv(0).keys[0].abs().max() == 0  # the null block was never written


def test_kernel_pages_divide_the_block():
    assert [kernel_page(block) for block in (16, 64, 528, 784, 1024, 1568, 40, 7)] == [
        16,
        64,
        16,
        16,
        64,
        32,
        8,
        1,
    ]
