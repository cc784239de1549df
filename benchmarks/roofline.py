"""The roofline against measured kernels: efficiencies fitted on half of the models, judged on the other half.

    python benchmarks/roofline.py [--fit]      needs the extra kvtune[times]

Judges each pair of a judged model and a card on as few GPUs as hold it: the time of a step of 64 tokens, of one of
1,024, and of a token in a long prefill. Prints them as `aiconfigurator-core` measured them and the roofline's factor
over each, in Markdown, then the errors by generation. `--fit` first fits the efficiencies, on the other models, each
on 1 to 8 GPUs: what it prints is what `analyzers/step_times/efficiency.py` should hold. About 2 minutes, 6 with --fit.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import product
from pathlib import Path

import numpy as np

from kvtune.analyzers.hardware import Gpu, parse_hardware
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.step_times.efficiency import (
    GENERATIONS,
    QUANTIZED_ERROR,
    Efficiency,
    Generation,
    RooflineError,
    generation_of,
)
from kvtune.analyzers.step_times.kernels import (
    KernelQuery,
    KernelStepTimes,
    UnknownToKernelsError,
    library_version,
)
from kvtune.analyzers.step_times.model_work import ModelWork
from kvtune.analyzers.step_times.roofline import RooflineStepTimes

OURS = Path(__file__).parents[1] / "tests" / "data" / "models" / "configs"
FITTED = (
    "qwen3.5-9b",
    "qwen3.5-122b-a10b",
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "Qwen--Qwen3-32B",
    "Qwen--Qwen3-30B-A3B",
    "meta-llama--Meta-Llama-3.1-8B",
    "mistralai--Mixtral-8x7B-v0.1",
)
JUDGED = (
    "qwen3.5-4b",
    "qwen3.5-27b",
    "qwen3.5-35b-a3b",
    "Qwen--Qwen3.5-397B-A17B",
    "nvidia--Nemotron-H-56B-Base-8K",
    "Qwen--Qwen3-8B",
    "Qwen--Qwen3-235B-A22B",
    "meta-llama--Meta-Llama-3.1-70B",
    "google--gemma-4-26B-A4B",
)
QUANTIZED = (
    "Qwen--Qwen3-32B-FP8",
    "Qwen--Qwen3-30B-A3B-FP8",
    "openai--gpt-oss-20b",
    "openai--gpt-oss-120b",
    "deepseek-ai--DeepSeek-V3",
    "moonshotai--Kimi-K3",
)
CARDS = ("A100-80GB", "L40S", "H100", "H200", "B200", "B300", "GB200", "GB300", "RTX-PRO-6000")
RANKS = (1, 2, 4, 8)
FILL = 0.85
"""Of a card's memory, at most, for weights."""

# Start and tokens of the steps that are asked for; the judged figures come from the first four.
STEPS = ((0, 64), (0, 1_024), (0, 2_048), (0, 8_192), (0, 16), (0, 256), (8_192, 1_024), (32_768, 1_024))
FIGURES = ("64 tokens, ms", "1,024 tokens, ms", "a token, µs")
WEIGHT_OF_OTHERS = 0.5
"""Of figures that are fitted and not judged: steps of 16 and 256 tokens, and behind 8,192 and 32,768."""


@dataclass(frozen=True)
class Pair:
    """A model on a card, and what was measured of it.

    Attributes:
        figures: float64[7]: seconds of a step of 64 tokens, of 1,024, of a token; then of the other steps.
    """

    model: str
    gpu: Gpu
    ranks: int
    work: ModelWork
    figures: np.ndarray

    @property
    def generation(self) -> Generation:
        return generation_of(self.gpu)

    def factors(self, efficiency: Efficiency | None = None) -> np.ndarray:
        """float64[7]: roofline over measured."""
        roofline = RooflineStepTimes.of(self.work, self.gpu, self.ranks)
        if efficiency is not None:
            roofline = replace(roofline, efficiency=efficiency)
        return figures_of(roofline) / self.figures


def figures_of(times: KernelStepTimes | RooflineStepTimes) -> np.ndarray:
    """The figures of a pair, by whichever step times."""
    starts, tokens = (np.array(column, dtype=np.int64) for column in zip(*STEPS, strict=True))
    seconds = times.prefill_s(starts, tokens)
    token = (seconds[3] - seconds[2]) / (STEPS[3][1] - STEPS[2][1])
    return np.array([seconds[0], seconds[1], token, *seconds[4:]])


def config_of(model: str) -> str:
    """The config.json of a model, from the tests' data or the library's."""
    own = OURS / model / "config.json"
    if own.is_file():
        return own.read_text()
    return (resources.files("aiconfigurator_core") / "model_configs" / f"{model}_config.json").read_text()


def measured_pairs(models: Sequence[str], *, fewest_ranks: bool) -> list[Pair]:
    """Of all cards, on the fewest GPUs that hold the weights, or on each number that does."""
    pairs = []
    for model, card in product(models, CARDS):
        text, gpu = config_of(model), parse_hardware(card).gpu
        work = ModelWork.of(ModelConfig.parse(json.loads(text), where=model))
        assert gpu.kernels is not None
        for ranks in RANKS:
            if work.stored_bytes / ranks > FILL * gpu.memory_bytes:
                continue
            try:
                kernels = KernelStepTimes(KernelQuery(text, gpu.kernels, ranks), card, library_version())
                pairs.append(Pair(model, gpu, ranks, work, figures_of(kernels)))
            except UnknownToKernelsError:
                continue
            if fewest_ranks:
                break
    return pairs


def fit(pairs: Sequence[Pair]) -> Efficiency:
    """The efficiencies with the least sum of cubed log factors: near the median and not far off anywhere."""
    from scipy.optimize import least_squares

    weights = np.array([1.0] * len(FIGURES) + [WEIGHT_OF_OTHERS] * (len(STEPS) - 4))

    def residuals(values: np.ndarray) -> np.ndarray:
        off = np.concatenate([weights * np.log(pair.factors(Efficiency(*np.exp(values)))) for pair in pairs])
        return np.sign(off) * np.abs(off) ** 1.5

    start = np.log([0.8, 0.8, 0.7, 0.5, 0.6, 1e-5, 0.5, 0.5])
    bounds = np.log([0.3, 0.2, 0.15, 0.08, 0.1, 1e-6, 0.05, 0.05]), np.log([1.0] * 5 + [2e-4, 1.0, 1.0])
    found = np.exp(least_squares(residuals, start, bounds=bounds).x)
    return Efficiency(*(float(f"{value:.3g}") for value in found))


def judged_factors(pairs: Sequence[Pair]) -> np.ndarray:
    """float64[N, 3]: roofline over measured."""
    return np.array([pair.factors()[: len(FIGURES)] for pair in pairs])


def error_of(pairs: Sequence[Pair]) -> RooflineError:
    """On all figures of all pairs."""
    factors = judged_factors(pairs).ravel()
    off = np.abs(factors - 1)
    low, high = np.quantile(1 / factors, (0.1, 0.9))
    values = (off.mean(), np.quantile(off, 0.9), low, high)
    return RooflineError(*(float(f"{value:.2f}") for value in values))


def print_table(pairs: Sequence[Pair]) -> None:
    """What was measured, and the roofline's factors over it."""
    print(f"| model | GPU | {' | '.join(FIGURES)} | roofline / measured |")
    print("|---|---|---|---|---|---|")
    for pair in pairs:
        count = f" ×{pair.ranks}" if pair.ranks > 1 else ""
        scaled = pair.figures[:3] * (1e3, 1e3, 1e6)
        measured = " | ".join(f"{value:.3g}" for value in scaled)
        factors = " / ".join(f"{value:.2f}" for value in pair.factors()[:3])
        print(f"| {pair.model.split('--')[-1]} | {pair.gpu.name}{count} | {measured} | {factors} |")


def print_factors(pairs: Sequence[Pair]) -> None:
    """The factors alone, a row a model: the table of docs/time.md."""
    by_place = {(pair.model, pair.gpu.name): pair for pair in pairs}
    print(f"| model | {' | '.join(CARDS)} |")
    print(f"|---{'|---' * len(CARDS)}|")
    for model in dict.fromkeys(pair.model for pair in pairs):
        cells = []
        for card in CARDS:
            pair = by_place.get((model, parse_hardware(card).gpu.name))
            if pair is None:
                cells.append("–")
                continue
            count = f"×{pair.ranks}: " if pair.ranks > 1 else ""
            cells.append(count + " ".join(f"{value:.2f}" for value in pair.factors()[:3]))
        print(f"| {model.split('--')[-1]} | {' | '.join(cells)} |")


def print_summary(name: str, pairs: Sequence[Pair]) -> None:
    """Median and worst factor, up or down."""
    off = np.exp(np.abs(np.log(judged_factors(pairs))))
    median, worst = (
        " / ".join(f"{value:.2f}" for value in row) for row in (np.median(off, axis=0), off.max(axis=0))
    )
    print(f"| {name} | {len(pairs)} | {median} | {worst} | {tuple(error_of(pairs))} |")


def main() -> None:
    """Fit, judge, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true")
    if parser.parse_args().fit:
        pairs = measured_pairs(FITTED, fewest_ranks=False)
        for generation in GENERATIONS:
            own = [pair for pair in pairs if pair.generation is generation]
            print(f"{generation.name}, fitted on {len(own)}: {tuple(fit(own))}", flush=True)
        print("The tables below hold with efficiency.py as it is.\n")
    judged = measured_pairs(JUDGED, fewest_ranks=True)
    quantized = measured_pairs(QUANTIZED, fewest_ranks=True)
    print_table(judged)
    print()
    print_factors(judged)
    print("\nQuantized weights, for which nothing was fitted:\n")
    print_table(quantized)
    print(
        "\n| generation | pairs | median factor | worst factor | mean, p90, low, high |\n|---|---|---|---|---|"
    )
    for generation in GENERATIONS:
        print_summary(generation.name, [pair for pair in judged if pair.generation is generation])
    print_summary("all", judged)
    print_summary(f"quantized (held: {tuple(QUANTIZED_ERROR)})", quantized)


if __name__ == "__main__":
    main()
