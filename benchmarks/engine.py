"""The bundled engine on the CPU: each figure against a denominator of the same run.

    PYTHONPATH=build/links:. python benchmarks/engine.py [--rounds 9] [--only NAME,...] [--json FILE]

One thread, process CPU time, sides interleaved, medians of the per-round ratios. `transformers` is needed for the
figure against it (skipped, and said so, where it is not installed).

    prefill       paged, 512 tokens at a time / dense and windowed, whole           tokens per second, >= 0.90
    prefill_long  the same at 8,192 tokens                                          >= 0.95
    transformers  paged prefill / the transformers library's forward, equal config  >= 1.0
    decode        eight sequences at 2,000 tokens in one step / one by one          time, <= 0.6
    exact         --exact / fast, prefill <= 1.3 and decode <= 2.0                  time
    host          scheduling and metadata / the whole step, 64 sequences at 8,192   <= 0.05
    hashing       the engine's chain / a bare loop of the same digests              <= 1.3
    cost          held-out error of the fitted step-cost model                      <= 0.10 to be used
    depth         the same of 16 layers composed of 4 and 6, on a model of 12       <= 0.10 to be used
    greedy        requests whose most likely tokens differ from no cache            0
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pickle
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from engine_harness import (
    CONFIG,
    GROUPS,
    DenseOps,
    chunked,
    four_layers,
    interleaved,
    make_probe,
    whole,
)

from kvtune.analyzers.bookkeeping.scheduler import make_scheduler
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.layout import EngineConfig, KVCacheGroup
from kvtune.analyzers.prefix_tree import KEY_SHIFT, PrefixPath
from kvtune.analyzers.profiles import profile_for
from kvtune.analyzers.replay import replay
from kvtune.analyzers.step_times import ASSUMED
from kvtune.gpu_probe.engine.calibrate import Design, Harness, calibrate
from kvtune.gpu_probe.engine.clocks import ModelClock
from kvtune.gpu_probe.engine.depth import cost_of_whole
from kvtune.gpu_probe.engine.grid import ExactGrid
from kvtune.gpu_probe.engine.hashing import FIRST_PARENT, HashChain
from kvtune.gpu_probe.engine.model_config import model_spec
from kvtune.gpu_probe.engine.probe import Probe, with_unit
from kvtune.gpu_probe.engine.spec import Attention, Block, GatedDeltaNet, Mlp, ModelSpec
from kvtune.gpu_probe.engine.stand_in import BUNDLED
from kvtune.gpu_probe.engine.step import Segment, build_step
from kvtune.gpu_probe.engine.weights import synthetic_weights
from kvtune.gpu_probe.engine.workload import make_workload
from tests.gpu_probe.engine.conversations import conversations


def prefill(rounds: int, length: int = 2048) -> dict[str, float]:
    ids = np.random.default_rng(0).integers(0, 4096, length)
    spec = four_layers()
    paged, dense = make_probe(spec), make_probe(spec, ops=DenseOps())
    ours, theirs, ratio = interleaved(
        rounds, whole(Harness(dense, 64), ids), chunked(Harness(paged, 64), ids)
    )
    return {"ratio": ratio, "dense_tok_s": length / ours, "paged_tok_s": length / theirs}


def prefill_long(rounds: int) -> dict[str, float]:
    return prefill(rounds, 8192)


def against_transformers(rounds: int) -> dict[str, float] | str:
    try:
        import transformers
    except ImportError:
        return "not run: transformers is not installed"
    fields = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "vocab_size": 4096,
    }
    config = transformers.AutoConfig.for_model("qwen3_5_text", **fields)
    peer = transformers.AutoModelForCausalLM.from_config(config).eval()
    spec = model_spec({"model_type": "qwen3_5_text", **fields})
    harness = Harness(make_probe(spec, replace(CONFIG, groups=(GROUPS[0], GROUPS[2]))), 64)
    ids = np.random.default_rng(0).integers(0, 4096, 2048)

    @torch.inference_mode()
    def forward() -> object:
        return peer(torch.from_numpy(ids)[None], use_cache=False, logits_to_keep=1)

    theirs, ours, ratio = interleaved(rounds, forward, chunked(harness, ids))
    return {"ratio": ratio, "transformers_tok_s": 2048 / theirs, "paged_tok_s": 2048 / ours}


def decode(rounds: int) -> dict[str, float]:
    harness = Harness(make_probe(four_layers()), 200)
    batch = harness.batch([(2000, 1)] * 8)

    def together() -> None:
        for _ in range(4):
            harness.run(batch)

    def one_by_one() -> None:
        for _ in range(4):
            for segment in batch:
                harness.run([segment])

    ours, loops, ratio = interleaved(rounds, together, one_by_one)
    return {"ratio": ratio, "step_ms": 250 * ours, "loop_ms": 250 * loops}


def exact(rounds: int) -> dict[str, float]:
    ids = np.random.default_rng(0).integers(0, 4096, 2048)
    spec = four_layers()
    sides = [Harness(make_probe(spec, grid=grid), 200) for grid in (ExactGrid(), None)]
    _, _, prefill_ratio = interleaved(rounds, *(chunked(side, ids) for side in sides))
    steps = [(side, side.batch([(2000, 1)] * 8)) for side in sides]
    _, _, decode_ratio = interleaved(
        rounds, *(lambda side=side, batch=batch: [side.run(batch) for _ in range(4)] for side, batch in steps)
    )
    return {"prefill": prefill_ratio, "decode": decode_ratio}


def host(rounds: int, sequences: int = 64, context: int = 8192) -> dict[str, float]:
    """Decode steps of 64 sequences in a pool of their own; prefills are scheduled and not computed."""
    groups = (KVCacheGroup("mamba", 1024, count=3, mode="align"), KVCacheGroup("full", 1024))
    config = EngineConfig(groups=groups, match_unit=32)
    scheduler = make_scheduler(config, profile_for(config.version).profile)
    for index in range(sequences):
        path = PrefixPath([context + 1000], [index << KEY_SHIFT])
        scheduler.add_request(Sequence(index, path, context - 8 * index, 900))
    while any(sequence.is_prefill_chunk for sequence in scheduler.running) or scheduler.waiting:
        scheduler.update(scheduler.schedule())
    probe = make_probe(BUNDLED, config)
    pools = probe.allocate(scheduler.coordinator.pool.num_used_ids + 200)
    pools.fill(0.01)
    ids = np.zeros(1, dtype=np.int64)
    shares, host_ms = [], []
    for _ in range(rounds + 1):
        start = time.process_time()
        plan = scheduler.schedule()
        segments = [
            Segment(ids, chunk.start, tuple(map(np.array, scheduler.tables(chunk.sequence))))
            for chunk in plan.chunks
        ]
        step, _ = build_step(segments, probe.layers)
        planned = time.process_time()
        probe.model.forward(step, pools)
        computed = time.process_time()
        scheduler.update(plan)
        taken = time.process_time() - computed + planned - start
        host_ms.append(1000 * taken)
        shares.append(taken / (taken + computed - planned))
    return {"share": statistics.median(shares[1:]), "host_ms": statistics.median(host_ms[1:])}


def hashing(rounds: int, unit: int = 32, length: int = 8000) -> dict[str, float]:
    ids = np.random.default_rng(0).integers(0, 100_000, length)

    def chain() -> None:
        for _ in range(20):
            HashChain(unit).extend(ids, length)

    def bare() -> None:
        for _ in range(20):
            parent, values = FIRST_PARENT, ids.tolist()
            for begin in range(0, length - unit + 1, unit):
                piece = (parent, tuple(values[begin : begin + unit]), None)
                parent = hashlib.sha256(pickle.dumps(piece, protocol=pickle.HIGHEST_PROTOCOL)).digest()

    ours, theirs, ratio = interleaved(rounds, chain, bare)
    return {"ratio": ratio, "prompt_ms": 50 * ours, "bare_ms": 50 * theirs}


def cost(rounds: int) -> dict[str, float]:
    found = calibrate(make_probe(four_layers(128, 1024)), repeats=max(3, rounds), clock=time.process_time)
    model = found.cost
    predicted = sum(model.step_s(shape) for shape in found.shapes)
    return {
        "held_out_mean": model.info.error.mean,
        "held_out_p90": model.info.error.p90,
        "total_error": predicted / sum(found.seconds) - 1,
        "step_cost_tokens": model.step_cost_tokens or float("nan"),
        "extrapolates": float(model.extrapolates),
    }


def depth(rounds: int) -> dict[str, float]:  # noqa: ARG001
    """Sixteen layers, every second one full attention."""
    mixers = (GatedDeltaNet(4, 8, 32, 32, 4), Attention(8, 2, 32, 32**-0.5, 16, qk_norm=True))
    blocks = []
    for layer in range(16):
        blocks.append(Block(f"layers.{layer}.mixer", layer, mixers[layer % 2]))
        blocks.append(Block(f"layers.{layer}.feed_forward", layer, Mlp(768)))
    spec = ModelSpec("deep", 256, 4096, tuple(blocks))

    def make_probes(specs):
        weights = synthetic_weights(specs[-1], 0, torch.float32, torch.float32)
        return [Probe(each, CONFIG, weights) for each in specs]

    model, layers = cost_of_whole(spec, make_probes, design=Design.reaching(4096), progress=lambda *_: None)
    return {"layers": layers, "held_out_mean": model.info.error.mean, "held_out_p90": model.info.error.p90}


def greedy(rounds: int) -> dict[str, float]:  # noqa: ARG001
    """200 requests, five units and an unset one, a pool that evicts and preempts, float32."""
    config = EngineConfig(
        groups=(KVCacheGroup("mamba", 128, count=2, mode="align"), KVCacheGroup("full", 128)),
        max_num_batched_tokens=256,
    )
    traffic = conversations(
        1024, 40, 5, gap=0.004, system=200, answers=(1, 10), openings=(10, 60), replies=(10, 60)
    )
    workload = make_workload(traffic, "recorded", vocab_size=1024, seed=0)
    probe = make_probe(replace(BUNDLED, blocks=BUNDLED.blocks[2:]), config)

    def run(config: EngineConfig, arrivals: str):
        return probe.run(config, workload, ModelClock(ASSUMED.step_s), arrivals=arrivals)

    want = run(replace(config, enable_prefix_caching=False), "sequential").greedy
    found = {"requests": len(workload), "differing": 0, "counts_differing": 0, "evicted": 0, "preemptions": 0}
    for unit in (None, 64, 32, 16, 8):
        for blocks, arrivals in ((60, "sequential"), (24, "trace")):
            tried = replace(with_unit(config, unit), num_blocks=blocks)
            record = run(tried, arrivals)
            found["differing"] += sum(one != two for one, two in zip(record.greedy, want, strict=True))
            found["evicted"] += int(record.evicted_blocks.sum())
            found["preemptions"] += int(record.preemptions.sum())
            if arrivals == "sequential":
                predicted = replay(tried, workload.inputs)
                found["counts_differing"] += int((predicted.hit_tokens != record.hit_tokens).sum())
    return found


FIGURES: dict[str, Callable[[int], dict[str, float] | str]] = {
    "prefill": prefill,
    "prefill_long": prefill_long,
    "transformers": against_transformers,
    "decode": decode,
    "exact": exact,
    "host": host,
    "hashing": hashing,
    "cost": cost,
    "depth": depth,
    "greedy": greedy,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default=",".join(FIGURES))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for name in arguments.only.split(","):
        results[name] = found = FIGURES[name](arguments.rounds)
        values = (
            found
            if isinstance(found, str)
            else "  ".join(f"{key} {value:.4g}" for key, value in found.items())
        )
        print(f"{name:>13}  {values}", flush=True)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"torch": torch.__version__, "figures": results}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
