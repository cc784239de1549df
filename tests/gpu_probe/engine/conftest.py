"""A small hybrid model with pools of its own, driven share by share: what the engine's tests have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kvtune.analyzers.layout import KVCacheGroup  # noqa: E402
from kvtune.gpu_probe.engine.grid import ExactGrid  # noqa: E402
from kvtune.gpu_probe.engine.model import Decoder  # noqa: E402
from kvtune.gpu_probe.engine.ops.fast import FastOps  # noqa: E402
from kvtune.gpu_probe.engine.ops.reference import ReferenceOps  # noqa: E402
from kvtune.gpu_probe.engine.pools import BlockCopy, CachePools, assign_layers  # noqa: E402
from kvtune.gpu_probe.engine.spec import (  # noqa: E402
    Attention,
    Block,
    GatedDeltaNet,
    Mamba2,
    Mlp,
    ModelSpec,
    Moe,
    ShortConv,
)
from kvtune.gpu_probe.engine.step import Segment, build_step  # noqa: E402
from kvtune.gpu_probe.engine.weights import synthetic_weights  # noqa: E402

VOCAB = 512
HIDDEN = 64

OPERATORS = {
    "delta": GatedDeltaNet(num_key_heads=2, num_value_heads=4, key_dim=16, value_dim=16, conv_kernel=4),
    "mamba": Mamba2(num_heads=4, head_dim=16, state_size=16, num_groups=2, conv_kernel=4),
    "conv": ShortConv(HIDDEN, conv_kernel=3),
    "window": Attention(4, 2, 16, 0.25, rotary_dim=16, window=40),
    "full": Attention(4, 2, 16, 0.25, rotary_dim=8, qk_norm=True, output_gate=True),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Two threads on a shared machine are slower than one, and not always by the same bits."""
    torch.set_num_threads(1)


def make_spec(
    mixers: Sequence[str] = ("delta", "window", "mamba", "full", "conv"), experts: bool = True
) -> ModelSpec:
    """A decoder of the named mixers, each followed by a feed-forward block; every second one has experts."""
    blocks = []
    for layer, name in enumerate(mixers):
        blocks.append(Block(f"layers.{layer}.mixer", layer, OPERATORS[name]))
        feed_forward = Moe(4, 2, 32, 32, shared_gate=True) if experts and layer % 2 else Mlp(128)
        blocks.append(Block(f"layers.{layer}.feed_forward", layer, feed_forward))
    return ModelSpec("test", HIDDEN, VOCAB, tuple(blocks))


class Rig:
    """A model, its pools and block tables; `run` computes shares of sequences and returns all their logits."""

    def __init__(
        self,
        spec: ModelSpec | None = None,
        *,
        block: int = 64,
        dtype: Any = torch.float32,
        grid: ExactGrid | None = None,
        reference: bool = False,
        num_blocks: int = 160,
        seed: int = 0,
    ) -> None:
        self.spec = spec or make_spec()
        self.groups = (
            KVCacheGroup("mamba", block, mode="align"),
            KVCacheGroup("sliding_window", block, window=40),
            KVCacheGroup("full", block),
        )
        state = torch.float64 if dtype == torch.float64 else torch.float32
        self.layers = assign_layers(self.spec, self.groups)
        open_chunk = grid.scan_chunk if grid else 0
        self.pools = CachePools(
            self.spec, self.layers, num_blocks, dtype=dtype, state_dtype=state, open_chunk=open_chunk
        )
        self.pools.fill(float("nan"))  # what is read before it was written spoils the result
        self.grid = grid
        ops = ReferenceOps(state) if reference else FastOps(state, grid)
        group_of = {block: index for index, group in enumerate(self.layers) for block in group.blocks}
        self.model = Decoder(self.spec, synthetic_weights(self.spec, seed, dtype, state), ops, group_of)
        self.free = list(range(num_blocks - 1, 0, -1))

    def tables(self, length: int, rng: Any = None) -> tuple[Any, ...]:
        """Fresh blocks for a sequence of `length` tokens in every group, shuffled where `rng` is given."""
        if rng is not None:
            rng.shuffle(self.free)
        counts = [-(-length // group.block_size) for group in self.groups]
        return tuple(np.array([self.free.pop() for _ in range(count)]) for count in counts)

    def run(self, *shares: tuple[Any, int, tuple[Any, ...]], copies: Sequence[BlockCopy] = ()) -> Any:
        """Logits [T, vocab] of shares (ids, start, tables), one after another."""
        segments = [Segment(np.asarray(ids), start, tables) for ids, start, tables in shares]
        step, pending = build_step(segments, self.layers, grid=self.grid, copies=copies)
        self.pools.copy(pending)
        return self.model.forward(step, self.pools, every_row=True)

    def schedule(self, sequences: Sequence[Any], sizes: Callable[[], int], rng: Any) -> list[Any]:
        """Computes whole sequences in random shares, batched at random; logits [length, vocab] of each."""
        tables = [self.tables(len(ids), rng) for ids in sequences]
        done = [0] * len(sequences)
        parts: list[list[Any]] = [[] for _ in sequences]
        while any(at < len(ids) for at, ids in zip(done, sequences, strict=True)):
            shares, owners = [], []
            for index, ids in enumerate(sequences):
                count = min(sizes(), len(ids) - done[index])
                if count > 0:
                    shares.append((ids[done[index] : done[index] + count], done[index], tables[index]))
                    owners.append((index, count))
                    done[index] += count
            logits = self.run(*shares) if shares else None
            for index, count in owners:
                parts[index].append(logits[:count])
                logits = logits[count:]
        return [torch.cat(part) for part in parts]


@pytest.fixture
def engine() -> SimpleNamespace:
    """The rig and what tests build it from."""
    return SimpleNamespace(Rig=Rig, spec=make_spec, operators=OPERATORS, vocab=VOCAB, hidden=HIDDEN)
