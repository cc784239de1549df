"""Whole runs: the scheduler's plans on tensors against the replay, request by request, and against no cache at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kvtune.analyzers.layout import EngineConfig, KVCacheGroup  # noqa: E402
from kvtune.analyzers.replay import replay  # noqa: E402
from kvtune.analyzers.step_times import ASSUMED  # noqa: E402
from kvtune.gpu_probe.engine.clocks import ModelClock  # noqa: E402
from kvtune.gpu_probe.engine.grid import ExactGrid  # noqa: E402
from kvtune.gpu_probe.engine.probe import Precision, Probe, with_unit  # noqa: E402
from kvtune.gpu_probe.engine.weights import synthetic_weights  # noqa: E402
from kvtune.gpu_probe.engine.workload import make_workload  # noqa: E402
from tests.gpu_probe.engine.conversations import conversations  # noqa: E402

BLOCK = 128
COUNTS = ("hit_tokens", "prefill_steps", "copies", "evicted_blocks", "preemptions")


SERVERS = {
    "delta and attention": (
        ("delta", "delta", "full"),
        (KVCacheGroup("mamba", BLOCK, count=2, mode="align"), KVCacheGroup("full", BLOCK)),
    ),
    "mamba, states exported": (
        ("mamba", "full", "conv"),
        (KVCacheGroup("mamba", BLOCK, mode="align", export_alignment=1), KVCacheGroup("full", BLOCK)),
    ),
    "window and attention": (
        ("window", "full"),
        (KVCacheGroup("sliding_window", 16, window=40), KVCacheGroup("full", 16)),
    ),
    "mamba, window of one unit, attention": (
        ("mamba", "window", "full"),
        (
            KVCacheGroup("mamba", BLOCK, mode="align"),
            KVCacheGroup("sliding_window", 32, window=40),
            KVCacheGroup("full", BLOCK),
        ),
    ),
}


class Server:
    """A probe for one of `SERVERS`, and a workload."""

    def __init__(self, engine, name, grid=None, dtype=torch.float32, **load):
        mixers, groups = SERVERS[name]
        self.config = EngineConfig(groups=groups, max_num_batched_tokens=192)
        spec = engine.spec(mixers)
        weights = synthetic_weights(spec, 0, dtype, torch.float32)
        self.probe = Probe(spec, self.config, weights, grid=grid, precision=Precision(dtype))
        self.workload = make_workload(
            conversations(engine.vocab, **load), "recorded", vocab_size=engine.vocab, seed=0
        )

    def run(self, config, arrivals="sequential", rate=1.0):
        clock = ModelClock(ASSUMED.step_s)
        return self.probe.run(config, self.workload, clock, arrivals=arrivals, rate=rate, check=True)

    def without_cache(self, **options):
        return self.run(replace(self.config, enable_prefix_caching=False), **options)


def assert_as_replayed(config, workload, record, arrivals="sequential"):
    predicted = replay(config, workload.inputs, arrivals=arrivals)
    for name in COUNTS:
        assert getattr(record, name).tolist() == getattr(predicted, name).tolist(), name
    return predicted


@pytest.mark.parametrize("name", SERVERS)
def test_counts_equal_the_replay_and_tokens_equal_no_cache(engine, name):
    server = Server(engine, name)
    want = server.without_cache()
    assert want.hit_tokens.sum() == 0
    units = {"delta and attention": (None, 64, 32, 16), "mamba, states exported": (None, 64, 32, 16)}.get(
        name
    )
    for unit in units or (None, min(group.block_size for group in server.config.groups)):
        config = with_unit(server.config, unit)
        record = server.run(config)
        predicted = assert_as_replayed(config, server.workload, record)
        assert record.hit_tokens.sum() > 0
        assert record.greedy == want.greedy
        if unit in (16, 32) and predicted.sizes.partial_hits:
            inside = record.hit_tokens % BLOCK
            assert (inside > 0).any()
            assert record.copied_tokens == inside.sum()


def test_prefilled_tokens_are_what_was_not_hit(engine):
    server = Server(engine, "delta and attention")
    record = server.run(with_unit(server.config, 16))
    assert (
        record.prefilled_tokens + record.hit_tokens
    ).tolist() == server.workload.inputs.prompt_tokens.tolist()


def test_a_small_pool_evicts_and_still_agrees(engine):
    server = Server(engine, "delta and attention")
    want = server.without_cache()
    config = replace(with_unit(server.config, 32), num_blocks=24)
    record = server.run(config)
    assert_as_replayed(config, server.workload, record)
    assert record.evicted_blocks.sum() >= 10
    assert record.greedy == want.greedy


@pytest.mark.parametrize(("unit", "num_blocks"), [(None, 14), (16, 10), (64, 13)])
def test_preemption_by_recomputation_changes_no_token(engine, unit, num_blocks):
    server = Server(engine, "delta and attention", turns=2, gap=0.0)
    want = server.without_cache()
    config = replace(with_unit(server.config, unit), num_blocks=num_blocks)
    record = server.run(config, arrivals="trace")
    assert_as_replayed(config, server.workload, record, "trace")
    assert record.preemptions.sum() >= 1
    assert record.evicted_blocks.sum() >= 1
    assert not record.refused
    assert record.greedy == want.greedy


@pytest.mark.parametrize("arrivals", ["sequential", "trace"])
@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_overlapping_requests_and_steps_are_executed_as_replayed(engine, arrivals, scheduling):
    server = Server(engine, "delta and attention")
    want = server.without_cache()
    config = replace(with_unit(server.config, 16), scheduling=scheduling)
    record = server.run(config, arrivals=arrivals)
    predicted = assert_as_replayed(config, server.workload, record, arrivals)
    assert record.greedy == want.greedy
    if arrivals == "trace":
        np.testing.assert_allclose(record.first_token, predicted.first_token_s, rtol=1e-9)
        np.testing.assert_allclose(record.finished, predicted.finished_s, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_exact_runs_have_the_bits_of_no_cache(engine, dtype):
    server = Server(engine, "delta and attention", grid=ExactGrid(), dtype=dtype)
    want = server.without_cache()
    assert all(want.digests)
    for unit in (None, 16):
        record = server.run(with_unit(server.config, unit), arrivals="trace", rate=4.0)
        assert record.hit_tokens.sum() > 0
        assert record.digests == want.digests


def test_a_prompt_that_can_never_fit_is_refused_and_the_rest_goes_on(engine):
    server = Server(engine, "delta and attention")
    # 511 tokens take 4 attention blocks; with 2 groups of states (running, and one to come) 6 blocks do not do.
    config = replace(server.config, num_blocks=7)
    record = server.run(config)
    predicted = replay(config, server.workload.inputs)
    assert record.refused == predicted.refused
    assert record.refused
    assert len(record.refused) < len(server.workload)


def test_the_model_clock_gives_equal_records(engine):
    server = Server(engine, "delta and attention")
    one, two = (server.run(with_unit(server.config, 16), arrivals="trace") for _ in range(2))
    assert one.token_times == two.token_times
    assert one.hit_tokens.tolist() == two.hit_tokens.tolist()
    assert one.duration_s == two.duration_s
    assert one.duration_s == pytest.approx(np.nanmax(one.finished) - one.arrival[0])


def test_no_slot_is_written_twice_and_the_null_block_never(engine, monkeypatch):
    """Every step of a run in a pool that evicts and preempts."""
    from kvtune.gpu_probe.engine import executor

    server = Server(engine, "delta and attention", turns=2, gap=0.0)
    steps = []
    original = executor.build_step

    def watched(segments, layers, **options):
        step, copies = original(segments, layers, **options)
        for block, offset in step.slots.values():
            assert (block > 0).all()
            assert len(set(zip(block.tolist(), offset.tolist(), strict=True))) == step.num_tokens
        for group, target in step.state_target.items():
            assert (target > 0).all()
            assert len(target.unique()) == step.num_sequences
            others = step.state_source[group]
            for b in range(step.num_sequences):
                # A state that another sequence reads in this step is not overwritten by this one.
                assert target[b] not in torch.cat([others[:b], others[b + 1 :]])
        steps.append(step.num_sequences)
        return step, copies

    monkeypatch.setattr(executor, "build_step", watched)
    record = server.run(replace(with_unit(server.config, 16), num_blocks=10), arrivals="trace")
    assert record.preemptions.sum() >= 1
    assert max(steps) >= 2
    for index, group in enumerate(server.probe.layers):
        assert group.blocks, index
