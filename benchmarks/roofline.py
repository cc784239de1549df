"""The roofline against measured kernels: efficiencies fitted on half of the pairs of model and GPU, judged on the rest.

    python benchmarks/roofline.py [--fit]      needs the extra kvtune[times]

Prints, for each pair that `aiconfigurator-core` has measured: the time of a step of 64 and of 1,024 tokens and of one
token in a long prefill, and the roofline's factor over each. With `--fit`, the efficiencies that
`analyzers/step_times/roofline.py` should hold.
"""

from __future__ import annotations

import argparse
import json
from importlib import resources
from itertools import product
from pathlib import Path

import numpy as np

from kvtune.analyzers.hardware import parse_hardware
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.step_times.kernels import (
    KernelQuery,
    KernelStepTimes,
    UnknownToKernelsError,
    library_version,
)
from kvtune.analyzers.step_times.model_work import ModelWork
from kvtune.analyzers.step_times.overhead import token_s
from kvtune.analyzers.step_times.roofline import EFFICIENCIES, Efficiency, RooflineStepTimes, generation
from kvtune.tokenization.errors import UnusableInputError

OURS = Path(__file__).parents[1] / "tests" / "data" / "models" / "configs"
MODELS = (
    "qwen3.5-4b",
    "qwen3.5-9b",
    "qwen3.5-27b",
    "qwen3.5-35b-a3b",
    "qwen3.5-122b-a10b",
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "Qwen--Qwen3-8B",
    "Qwen--Qwen3-32B",
    "Qwen--Qwen3-30B-A3B",
)
CARDS = ("A100-80GB", "L40S", "L4", "H100", "H200", "B200", "GB200", "RTX-PRO-6000")
FIELDS = ("64 tokens", "1,024 tokens", "a token")


def config_of(model: str) -> str | None:
    """The config.json of a model, from the tests' data or the library's."""
    own = OURS / model / "config.json"
    if own.is_file():
        return own.read_text()
    bundled = resources.files("aiconfigurator_core") / "model_configs" / f"{model}_config.json"
    return bundled.read_text() if bundled.is_file() else None


def figures(times: KernelStepTimes | RooflineStepTimes) -> np.ndarray:
    """float64[3]: seconds of a step of 64 tokens, of 1,024, and of a token."""
    steps = times.prefill_s(np.zeros(2, dtype=np.int64), np.array([64, 1024], dtype=np.int64))
    return np.array([*steps, token_s(times)])


def measured_pairs() -> list[tuple[str, str, ModelWork, np.ndarray]]:
    """Model, card, work and measured figures of every pair that the library knows."""
    pairs = []
    for model, card in product(MODELS, CARDS):
        text = config_of(model)
        if text is None:
            continue
        gpu = parse_hardware(card).gpu
        try:
            work = ModelWork.of(ModelConfig.parse(json.loads(text), where=model))
            assert gpu.kernels is not None
            kernels = KernelStepTimes(KernelQuery(text, gpu.kernels), card, library_version())
            pairs.append((model, card, work, figures(kernels)))
        except (UnknownToKernelsError, UnusableInputError) as error:
            print(f"left out: {model} on {card}: {error}")
    return pairs


def factors(
    pairs: list[tuple[str, str, ModelWork, np.ndarray]], efficiency: Efficiency | None = None
) -> np.ndarray:
    """float64[N, 3]: roofline over measured."""
    rows = []
    for _, card, work, measured in pairs:
        gpu = parse_hardware(card).gpu
        roofline = RooflineStepTimes.of(work, gpu)
        if efficiency is not None:
            roofline = RooflineStepTimes(work, gpu, 1, efficiency)
        rows.append(figures(roofline) / measured)
    return np.array(rows)


def fit(pairs: list[tuple[str, str, ModelWork, np.ndarray]]) -> Efficiency:
    """The efficiencies with the least sum of squared log factors."""
    from scipy.optimize import least_squares

    def residuals(values: np.ndarray) -> np.ndarray:
        return np.log(factors(pairs, Efficiency(*np.exp(values)))).ravel()

    start = np.log(np.array([0.8, 0.6, 0.7, 2e-5]))
    bounds = (np.log([0.2, 0.05, 0.1, 1e-7]), np.log([1.0, 1.0, 1.0, 2e-3]))
    return Efficiency(
        *np.exp(least_squares(residuals, start, bounds=bounds, loss="soft_l1").x).round(6).tolist()
    )


def main() -> None:
    """Fit, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true")
    asked = parser.parse_args()
    pairs = measured_pairs()
    fitted, judged = pairs[::2], pairs[1::2]
    if asked.fit:
        for major in sorted({generation(parse_hardware(card).gpu.capability) for _, card, *_ in pairs}):
            own = [pair for pair in fitted if generation(parse_hardware(pair[1]).gpu.capability) == major]
            EFFICIENCIES[major] = fit(own)
            print(major, EFFICIENCIES[major])
    print(f"| model | GPU | {' | '.join(f'{name}, ms' for name in FIELDS)} | roofline / measured | half |")
    print("|---|---|---|---|---|---|---|")
    for half, rows in (("fitted", fitted), ("judged", judged)):
        for (model, card, _, measured), factor in zip(rows, factors(rows), strict=True):
            times = " | ".join(f"{1000 * value:.4g}" for value in measured)
            print(f"| {model} | {card} | {times} | {' '.join(f'{value:.2f}' for value in factor)} | {half} |")
    for half, rows in (("fitted", fitted), ("judged", judged)):
        off = np.exp(np.abs(np.log(factors(rows))))
        print(
            f"{half}: {len(rows)} pairs, median factor {np.median(off, axis=0).round(2)}, "
            f"worst {off.max(axis=0).round(2)}"
        )


if __name__ == "__main__":
    main()
