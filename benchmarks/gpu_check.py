"""The bundled engine on a GPU: exactness, agreement with the CPU, and speed against the same run's peaks.

    python benchmarks/gpu_check.py [--json FILE] [--seconds 420]

Sized for eight minutes on one H200-class GPU. Denominators are measured here: a square bfloat16 product on random
data, and a device-to-device copy. Without a GPU it says "not run" and exits with 4; nothing passes by default.

    equal_counts     hits, copies, evictions and steps as on the CPU, under the model clock        all
    equal_tokens     float32 on the device: most likely tokens as without cache                     all
    on_off           largest difference of float32 logits, cache on against off                     <= 5e-5
    exact            tokens whose bits differ between chunk schedules under --exact                 stated
    prefill          model FLOP/s / matrix-product peak, width 4,096, 8,192 packed tokens           >= 0.45 wanted
    decode           bytes of weights, keys, values and states / time / copy bandwidth              >= 0.60 wanted
    step_cost        held-out error of the fitted step-cost model                                   <= 0.10 wanted
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from kvtune.analyzers.hardware import parse_hardware
from kvtune.analyzers.layout import EngineConfig, KVCacheGroup
from kvtune.analyzers.step_times import ASSUMED, StepTimes
from kvtune.analyzers.step_times.kernels import (
    KernelQuery,
    KernelStepTimes,
    UnknownToKernelsError,
    library_version,
)
from kvtune.gpu_probe.engine.calibrate import Harness, calibrate
from kvtune.gpu_probe.engine.clocks import ModelClock
from kvtune.gpu_probe.engine.devices import device_label, open_device
from kvtune.gpu_probe.engine.grid import ExactGrid
from kvtune.gpu_probe.engine.probe import Precision, Probe, with_unit
from kvtune.gpu_probe.engine.spec import Attention, Block, GatedDeltaNet, Mlp, ModelSpec
from kvtune.gpu_probe.engine.stand_in import BUNDLED
from kvtune.gpu_probe.engine.step import Segment
from kvtune.gpu_probe.engine.weights import synthetic_weights
from kvtune.gpu_probe.engine.workload import Workload, make_workload
from kvtune.tokenization.errors import MissingDependencyError, UnusableInputError
from kvtune.tokenization.trace import TokenTrace

COUNTS = ("hit_tokens", "prefill_steps", "copies", "evicted_blocks", "preemptions")
SMALL = EngineConfig(
    groups=(KVCacheGroup("mamba", 128, count=3, mode="align"), KVCacheGroup("full", 128)),
    max_num_batched_tokens=256,
)


def wide(layers: int = 4) -> ModelSpec:
    """Three gated delta nets and one attention layer at width 4,096: more than fits a GPU's second-level cache."""
    delta = GatedDeltaNet(16, 32, 128, 128, 4)
    attention = Attention(32, 8, 128, 128**-0.5, rotary_dim=64, qk_norm=True, output_gate=True)
    blocks = []
    for layer in range(layers):
        blocks.append(Block(f"layers.{layer}.mixer", layer, attention if layer % 4 == 3 else delta))
        blocks.append(Block(f"layers.{layer}.feed_forward", layer, Mlp(12288)))
    return ModelSpec("wide", 4096, 151_936, tuple(blocks))


def make_probe(
    spec: ModelSpec, config: EngineConfig, device: torch.device, dtype: torch.dtype, exact: bool = False
) -> Probe:
    weights = synthetic_weights(spec, 0, dtype, torch.float32, device)
    return Probe(spec, config, weights, precision=Precision(dtype), grid=ExactGrid() if exact else None)


def resent_prompts(vocab: int, count: int = 24) -> Workload:
    """Conversations of three turns under one system prompt."""
    rng = np.random.default_rng(0)
    prompts = []
    system = rng.integers(0, vocab, 300)
    history = [np.concatenate([system, rng.integers(0, vocab, 40)]) for _ in range(count // 3)]
    for _ in range(3):
        for index, ids in enumerate(history):
            prompts.append(ids)
            history[index] = np.concatenate([ids, rng.integers(0, vocab, int(rng.integers(20, 120)))])
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in prompts])])
    trace = TokenTrace(
        tokens=np.concatenate(prompts).astype(np.uint32),
        offsets=offsets,
        prompt_tokens=np.diff(offsets),
        arrival=np.arange(len(prompts)) * 0.01,
        namespace=np.zeros(len(prompts), np.int32),
        ids=[str(index) for index in range(len(prompts))],
        output_tokens=np.full(len(prompts), 16),
    )
    return make_workload(trace, "length", vocab_size=vocab, seed=0)


def seconds(work: Callable[[], object], repeats: int = 10) -> float:
    """Best device time of one call, by events."""
    work()
    torch.cuda.synchronize()
    best = float("inf")
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / 1000)
    return best


def peaks(device: torch.device) -> dict[str, float]:
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return {
        "matmul_flop_s": 2 * 8192**3 / seconds(lambda: a @ b),
        "copy_byte_s": 2 * source.numel() / seconds(lambda: target.copy_(source)),
    }


def agreement(device: torch.device) -> dict[str, object]:
    workload = resent_prompts(BUNDLED.vocab_size)
    here = make_probe(BUNDLED, SMALL, device, torch.float32)
    there = make_probe(BUNDLED, SMALL, torch.device("cpu"), torch.float32)
    counts, tokens = True, 0

    def run(probe: Probe, config: EngineConfig, arrivals: str):
        return probe.run(config, workload, ModelClock(ASSUMED.step_s), arrivals=arrivals)

    want = run(here, replace(SMALL, enable_prefix_caching=False), "sequential")
    for unit, blocks, arrivals in ((None, None, "sequential"), (16, None, "trace"), (32, 30, "trace")):
        config = replace(with_unit(SMALL, unit), num_blocks=blocks)
        one, two = run(here, config, arrivals), run(there, config, arrivals)
        counts &= all((getattr(one, name) == getattr(two, name)).all() for name in COUNTS)
        tokens += sum(a != b for a, b in zip(one.greedy, want.greedy, strict=True))
    return {"equal_counts": bool(counts), "requests_with_other_tokens": tokens, "requests": 3 * len(workload)}


def differences(device: torch.device) -> dict[str, object]:
    """One sequence whole against the same in shares, on the fast path and under --exact."""
    ids = np.random.default_rng(0).integers(0, BUNDLED.vocab_size, 900)
    found: dict[str, object] = {}
    for name, exact in (("on_off", False), ("exact", True)):
        probe = make_probe(BUNDLED, SMALL, device, torch.float32, exact)

        def logits(sizes: tuple[int, ...], probe: Probe = probe) -> torch.Tensor:
            harness = Harness(probe, 120)
            tables, at, parts = harness.tables(len(ids)), 0, []
            for size in sizes:
                parts.append(harness.run([Segment(ids[at : at + size], at, tables)]))
                at += size
            return parts[-1]

        whole, cut = logits((900,)), logits((333, 200, 67, 100, *[1] * 40, 160))
        found[name] = float((whole - cut).abs().max())
        if exact:
            found["exact_bits_equal"] = bool(torch.equal(whole, cut))
    return found


def speed(device: torch.device, peak: dict[str, float]) -> dict[str, object]:
    spec = wide()
    config = EngineConfig(
        groups=(KVCacheGroup("mamba", 528, count=3, mode="align"), KVCacheGroup("full", 528))
    )
    probe = make_probe(spec, config, device, torch.bfloat16)
    harness = Harness(probe, 4000)
    packed = harness.batch([(0, 2048)] * 4)
    taken = seconds(lambda: harness.run(packed), 5)
    attention = 4 * 4 * 32 * 128 * 2048 * 2049 // 2
    products = 2 * (spec.active_parameters() - spec.vocab_size * spec.hidden_size) * 8192
    found: dict[str, object] = {
        "prefill_tok_s": 8192 / taken,
        "prefill_share": (products + attention) / taken / peak["matmul_flop_s"],
    }
    for batch in (32, 128):
        harness.release()
        steps = harness.batch([(4096, 1)] * batch)
        taken = seconds(lambda steps=steps: harness.run(steps))
        weights = 2 * spec.active_parameters()
        keys = 2 * 2 * 8 * 128 * 4096 * batch
        states = 3 * 2 * 4 * 32 * 128 * 128 * batch
        found[f"decode_{batch}_ms"] = 1000 * taken
        found[f"decode_{batch}_share"] = (weights + keys + states) / taken / peak["copy_byte_s"]
    model = calibrate(probe).cost
    found["against_kernels"] = against_kernels(model, torch.cuda.get_device_name(device))
    found |= {"step_cost_mean_error": model.info.error.mean, "step_cost_p90_error": model.info.error.p90}
    return found


def wide_config(layers: int = 4) -> str:
    """`wide` as the config.json of the family that `aiconfigurator-core` knows."""
    text = {
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": layers,
        "layer_types": [
            "full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(layers)
        ],
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attn_output_gate": True,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 262_144,
        "vocab_size": 151_936,
    }
    return json.dumps(
        {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": text}
    )


def against_kernels(measured: StepTimes, gpu_name: str) -> dict[str, float] | str:
    """Measured steps of the wide model over `aiconfigurator-core`'s, by tokens in the step; or why there are none."""
    try:
        gpu = parse_hardware(gpu_name).gpu
        if gpu.kernels is None:
            return f"no kernels were measured on {gpu.name}"
        kernels = KernelStepTimes(KernelQuery(wide_config(), gpu.kernels), gpu.name, library_version())
        tokens = np.array([64, 256, 1024, 4096], dtype=np.int64)
        ratios = measured.prefill_s(np.zeros(4, dtype=np.int64), tokens) / kernels.prefill_s(
            np.zeros(4, dtype=np.int64), tokens
        )
    except (UnknownToKernelsError, UnusableInputError, MissingDependencyError) as error:
        return str(error)
    return dict(zip(map(str, tokens.tolist()), ratios.round(3).tolist(), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=420, help="start no further part after this")
    arguments = parser.parse_args()
    begun = time.monotonic()
    try:
        device = open_device("cuda")
    except MissingDependencyError as error:
        result: dict[str, object] = {"status": "not run", "reason": str(error)}
    else:
        peak = peaks(device)
        result = {"status": "run", "device": device_label(device), "torch": torch.__version__, "peaks": peak}
        parts: dict[str, Callable[[], object]] = {
            "agreement": lambda: agreement(device),
            "differences": lambda: differences(device),
            "speed": lambda: speed(device, peak),
        }
        for name, part in parts.items():
            late = time.monotonic() - begun > arguments.seconds
            result[name] = "not run: no time left" if late else part()
        result["wall_s"] = round(time.monotonic() - begun, 1)
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    return 0 if result["status"] == "run" else 4


if __name__ == "__main__":
    sys.exit(main())
