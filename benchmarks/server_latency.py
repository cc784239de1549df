"""Estimated decode steps against the latency of real vLLM servers.

    python benchmarks/server_latency.py      needs the extra kvtune[times]

`aiconfigurator-core` ships latencies that others measured on servers (`silicon_sample.csv`). Their time per output
token, with 4 to 16 requests at a time, is compared with the roofline's decode step for as many requests, halfway
through their outputs. Prefills of other requests lengthen the measured times, so they should be a little above.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from dataclasses import replace
from importlib import resources

import numpy as np

from kvtune.analyzers.hardware import parse_hardware
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.step_times.model_work import ModelWork
from kvtune.analyzers.step_times.roofline import RooflineStepTimes
from kvtune.analyzers.step_times.weight_format import FP8, NVFP4

MODELS = {
    "meta-llama/Llama-3.1-70B": "meta-llama--Meta-Llama-3.1-70B",
    "openai/gpt-oss-120b": "openai--gpt-oss-120b",
    "MiniMaxAI/MiniMax-M2.5": "MiniMaxAI--MiniMax-M2.5",
    "Qwen/Qwen3-235B-A22B-FP8": "Qwen--Qwen3-235B-A22B-FP8",
}
"""Names of the measurements, and of the library's configs."""
CARDS = {"h100_sxm": "H100", "h200_sxm": "H200", "b200_sxm": "B200", "b300_sxm": "B300"}
MOST_REQUESTS = 16
"""At more, prefills of other requests take a large part of the measured time."""


def work_of(model: str, precision: str) -> ModelWork:
    """The model as it was served: the config may be that of the checkpoint before it was quantized."""
    text = (
        resources.files("aiconfigurator_core") / "model_configs" / f"{MODELS[model]}_config.json"
    ).read_text()
    work = ModelWork.of(ModelConfig.parse(json.loads(text), where=model))
    layout = {"fp8": FP8, "fp4": NVFP4}.get(precision)
    if layout is None or "gpt-oss" in model:
        return work
    return replace(work, dense_format=layout, expert_format=layout)


def ratios() -> dict[tuple[str, str, str], list[float]]:
    """Measured over estimated by model, card and precision."""
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    sample = resources.files("aiconfigurator_core") / "systems" / "silicon_sample.csv"
    for row in csv.DictReader(sample.read_text().splitlines()):
        if (row["backend"], row["mode"]) != ("vllm", "agg") or row["attention_dp_size"] not in ("", "1"):
            continue
        if row["model_path"] not in MODELS or row["system"] not in CARDS or not row["silicon_tpot_ms"]:
            continue
        requests = int(row["batch_size"])
        if requests > MOST_REQUESTS:
            continue
        card, precision = CARDS[row["system"]], row["precision"]
        work = work_of(row["model_path"], precision)
        times = RooflineStepTimes.of(
            work,
            parse_hardware(card).gpu,
            int(row["tp_size"] or 1),
            expert_parallel=int(row["moe_ep_size"] or 1) > 1,
        )
        context = requests * (int(row["isl"]) + int(row["osl"]) // 2)
        estimated = 1000 * times.decode_s(1, requests, context)
        found[row["model_path"], card, precision].append(float(row["silicon_tpot_ms"]) / estimated)
    return found


def main() -> None:
    """Print the table."""
    found = ratios()
    print("| model | GPU | weights | servers | measured / estimated, p10, p50, p90 |")
    print("|---|---|---|---|---|")
    for (model, card, precision), values in sorted(found.items()):
        shown = ", ".join(f"{value:.2f}" for value in np.quantile(values, (0.1, 0.5, 0.9)))
        print(f"| {model} | {card} | {precision} | {len(values)} | {shown} |")
    every = np.concatenate([np.array(values) for values in found.values()])
    shown = ", ".join(f"{value:.2f}" for value in np.quantile(every, (0.1, 0.5, 0.9)))
    print(f"| all | | | {len(every)} | {shown} |")


if __name__ == "__main__":
    main()
