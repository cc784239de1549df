"""The roofline: a tiny model by hand, what must hold of any, and how far it is from measured kernels."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kvtune.analyzers.hardware import Gpu, parse_hardware
from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.replay import replay
from kvtune.analyzers.step_times import StepShape, StepTimesInfo
from kvtune.analyzers.step_times.efficiency import (
    GENERATIONS,
    QUANTIZED_ERROR,
    Efficiency,
    RooflineError,
    generation_of,
)
from kvtune.analyzers.step_times.model_work import AttentionWork, ModelWork
from kvtune.analyzers.step_times.overhead import step_overhead, token_s
from kvtune.analyzers.step_times.roofline import RooflineStepTimes
from kvtune.tokenization.trace import Float64, Int64
from tests.analyzers.step_times.test_model_work import TINY, named, parsed
from tests.analyzers.structures import load_structure

SLOW = Gpu("slow", 2**30, bandwidth_byte_s=1e6, bf16_flop_s=1e9, capability=90, link_byte_s=1e5)
WHOLE = Efficiency(1.0, 1.0, 1.0, 1.0, 1.0, launch_s=1e-3, link_pair=0.5, link_many=0.25)
MEASURED = Path(__file__).parents[2] / "data" / "expected" / "roofline-kernels.csv"
PAGE = Path(__file__).parents[3] / "docs" / "time.md"


def ints(*values: int) -> Int64:
    return np.array(values, dtype=np.int64)


def tiny(ranks: int = 1, **changes: object) -> RooflineStepTimes:
    work = replace(ModelWork.of(parsed(TINY)), **changes)  # type: ignore[arg-type]
    return RooflineStepTimes(work, SLOW, ranks, False, WHOLE)


def test_a_small_prefill_by_hand() -> None:
    """10 tokens on 1 MB/s and 1 GFLOP/s: reading decides everywhere."""
    weights = 2 * (134_400 + 100_000) / 1e6
    states = 2 * 3_480 / 1e6
    activations = 10 * 2 * 6_064 / 1e6
    touched = 8 * (1 - 0.75**10)
    experts = 4 * 9_000 * (touched * 2 / 1e6 + 10 * 2 * 2 / (1e9 * 30 / (30 + 256)))
    keys_values = 10 * 200 / 1e6
    expected = weights + states + activations + experts + keys_values + 8 * 1e-3
    assert tiny().prefill_s(ints(0), ints(10))[0] == pytest.approx(expected, rel=1e-12)
    assert expected == pytest.approx(1.164331, rel=1e-6)


def test_a_long_prefill_computes() -> None:
    """100,000 tokens: dense weights and pairs are computed longer than read."""
    dense = 100_000 * 2 * 134_400 / 1e9
    pairs = 100_000 * 50_000.5 * 400 / 1e9
    experts = 4 * 9_000 * (8 * 2 / 1e6 + 100_000 * 2 * 2 / (1e9 * 30 / 286))
    passed = (2 * 3_480 + 100_000 * 2 * 6_064 + 2 * 100_000) / 1e6
    expected = dense + pairs + experts + passed + 8 * 1e-3
    assert tiny().prefill_s(ints(0), ints(100_000))[0] == pytest.approx(expected, rel=1e-9)


def test_windows_bound_pairs_and_reading() -> None:
    """1,000 tokens behind 10,000: a window of 64 reads 1,064 positions; without one 10,500.5 are attended to."""
    window = tiny(attention=(AttentionWork(1, 400, 200, reach=64),), experts=None)
    full = tiny(attention=(AttentionWork(1, 400, 200),), experts=None)
    near, far = window.prefill_s(ints(64, 10_000), ints(1_000, 1_000))
    assert near == far
    pairs, read = 1_000 * 10_500.5 * 400 / 1e9, 1_064 * 200 / 1e6
    assert full.prefill_s(ints(10_000), ints(1_000))[0] - far == pytest.approx(pairs - read, rel=1e-9)
    decoding = StepShape(0, 0, 0, 2, 2_000)
    saved = full.step_s(decoding) - window.step_s(decoding)
    assert saved == pytest.approx((2_000 - 2 * 64) * 200 / 1e6, rel=1e-9)


def test_latent_rows_of_earlier_positions_are_expanded() -> None:
    kind = AttentionWork(2, 400, 0.0, expanded_weights=500)
    latent, plain = (tiny(attention=(kind,)), tiny(attention=(replace(kind, expanded_weights=0),)))
    extra = latent.prefill_s(ints(0, 3_000), ints(10, 10)) - plain.prefill_s(ints(0, 3_000), ints(10, 10))
    assert extra.tolist() == pytest.approx([0.0, 2 * 2 * 3_000 * 500 / 1e9])


@pytest.mark.parametrize(("ranks", "share"), [(2, 0.5), (4, 0.25)])
def test_gpus_share_reading_and_pay_all_reduces(ranks: int, share: float) -> None:
    alone, shared = tiny(experts=None), tiny(ranks, experts=None)
    launch = 8 * 1e-3
    all_reduce = 8 * (1.5e-5 + 2 * (ranks - 1) / ranks * 10 * 100 * 2 / (1e5 * share))
    expected = (alone.prefill_s(ints(0), ints(10))[0] - launch) / ranks + launch + all_reduce
    assert shared.prefill_s(ints(0), ints(10))[0] == pytest.approx(expected, rel=1e-12)


def test_whole_experts_keep_their_width() -> None:
    split, whole = tiny(2), replace(tiny(2), expert_parallel=True)
    compute = 4 * 9_000 * 1_000 * 2 * 2 / 2e9
    difference = split.prefill_s(ints(0), ints(1_000))[0] - whole.prefill_s(ints(0), ints(1_000))[0]
    assert difference == pytest.approx(compute * ((15 + 256) / 15 - (30 + 256) / 30), rel=1e-9)


def test_a_step_of_one_chunk_is_that_chunk() -> None:
    times = RooflineStepTimes.of(ModelWork.of(named("qwen3.5-35b-a3b")), parse_hardware("H100").gpu)
    for start, tokens in ((0, 1), (0, 700), (5_000, 64)):
        shape = StepShape(tokens, 1, tokens * (2 * start + tokens + 1) // 2, 0, 0)
        assert times.step_s(shape) == pytest.approx(times.prefill_s(ints(start), ints(tokens))[0], rel=1e-9)


def test_decoding_by_hand() -> None:
    """Three requests at 1,000 positions in all, then the same four times, a position further each."""
    weights = 2 * (134_400 + 100_000) / 1e6
    experts = 4 * 9_000 * (8 * (1 - 0.75**3) * 2 / 1e6 + 3 * 2 * 2 / (1e9 * 30 / 286))
    passed = (3 * 2 * 3_480 + 3 * 2 * 6_064) / 1e6
    step = weights + experts + passed + 1_000 * 200 / 1e6 + 8 * 1e-3
    times = tiny()
    assert times.step_s(StepShape(0, 0, 0, 3, 1_000)) == pytest.approx(step, rel=1e-12)
    run = sum(times.step_s(StepShape(0, 0, 0, 3, 1_000 + 3 * index)) for index in range(4))
    assert times.decode_s(4, 3, 1_000) == pytest.approx(run, rel=1e-3)
    assert times.step_s(StepShape(0, 0, 0, 0, 0)) == 0.0


def test_a_chunk_beside_decoding_costs_less_than_alone() -> None:
    """The weights are read once."""
    times = RooflineStepTimes.of(ModelWork.of(named("qwen3.5-27b")), parse_hardware("H100").gpu)
    decoding = StepShape(0, 0, 0, 32, 32 * 2_000)
    both = StepShape(64, 1, 64 * 65 // 2, 32, 32 * 2_000)
    alone = times.prefill_s(ints(0), ints(64))[0]
    assert 0 < times.step_s(both) - times.step_s(decoding) < 0.2 * alone


@pytest.mark.parametrize(
    ("name", "expected", "own"),
    [
        ("A100-80GB", "Ampere", True),
        ("RTX 3090", "Ampere", True),
        ("RTX 4090", "Ada", True),
        ("H20", "Hopper", True),
        ("RTX 5090", "Blackwell", True),
        ("GB10", "Blackwell", True),
        ("T4", "Ampere", False),
        ("MI300X", "Hopper", False),
        ("memory=48GiB,bandwidth=864GB/s,bf16=362TFLOPS", "Hopper", False),
    ],
)
def test_efficiencies_of_a_card(name: str, expected: str, own: bool) -> None:
    gpu = parse_hardware(name).gpu
    generation = generation_of(gpu)
    assert (generation.name, generation.judges(gpu)) == (expected, own)
    info = RooflineStepTimes.of(ModelWork.of(parsed(TINY)), gpu).info
    assert ("as no kernels of its own generation are measured" in info.provenance) is not own
    assert (info.error is None) is not own
    assert (info.range == (0.33, 3.0)) is not own
    assert ("from the data sheet given" in info.provenance) is ("=" in name)


def test_the_range_holds_the_error_and_that_of_kernels() -> None:
    """ln 2 and ln 1.5 as independent: sqrt(0.6931^2 + 0.4055^2) = 0.8030."""
    assert RooflineError(0.1, 0.2, 1 / 1.5, 1.5).range == (0.45, 2.23)
    assert RooflineError(0.1, 0.2, 1.2, 0.9).range == (0.5, 2.0)  # never narrower than kernels'


def test_quantized_models_have_a_wider_range() -> None:
    gpu = parse_hardware("H100").gpu
    plain, quantized = (
        RooflineStepTimes.of(ModelWork.of(parsed(TINY | more)), gpu).info
        for more in ({}, {"quantization_config": {"quant_method": "fp8"}})
    )
    assert quantized.range[1] > plain.range[1]
    assert "quantized" in quantized.provenance and "quantized" not in plain.provenance


def measured_factors() -> dict[tuple[str, str, int], list[float]]:
    """Estimated over measured by model, GPU and ranks: steps of 64 and 1,024 tokens, a token."""
    factors = {}
    with MEASURED.open(newline="") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            gpu, ranks = parse_hardware(row["gpu"]).gpu, int(row["ranks"])
            times = RooflineStepTimes.of(ModelWork.of(named(row["model"])), gpu, ranks)
            small, large = times.prefill_s(ints(0, 0), ints(64, 1_024))
            measured = [float(row[name]) for name in ("step_64_s", "step_1024_s", "token_s")]
            estimated = small, large, token_s(times)
            factors[row["model"], row["gpu"], ranks] = [
                float(a / b) for a, b in zip(estimated, measured, strict=True)
            ]
    return factors


def test_within_a_factor_of_two_of_measured_kernels() -> None:
    """Models that took no part in the fit. Each of the three figures: factor 2 on each pair, 1.4 on the median."""
    factors = np.array(list(measured_factors().values()))
    assert len(factors) >= 12
    off = np.exp(np.abs(np.log(factors)))
    assert off.max() <= 2.0
    assert np.median(off, axis=0).max() <= 1.4


def test_the_documented_factors_are_those_of_the_code() -> None:
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cards = next(cells[1:] for cells in lines if cells[0] == "model")
    written = {cells[0]: dict(zip(cards, cells[1:], strict=True)) for cells in lines if len(cells) == 10}
    for (model, card, ranks), factors in measured_factors().items():
        count = f"×{ranks}: " if ranks > 1 else ""
        assert written[model][card] == count + " ".join(f"{factor:.2f}" for factor in factors)
    ranges = {cells[0]: cells[-1] for cells in lines}
    for name, error in (
        *((each.name, each.error) for each in GENERATIONS),
        ("quantized weights", QUANTIZED_ERROR),
    ):
        assert ranges[name] == f"{error.range[0]:.2f} to {error.range[1]:.2f}"


TAU_AIRLINE = {
    ("qwen3.5-27b", "H100", 1): {
        32: 75_860.626,
        96: 71_443.916,
        264: 69_066.823,
        352: 68_958.711,
        1_056: 96_419.144,
    },
    ("qwen3.5-35b-a3b", "H100", 1): {
        32: 53_517.594,
        96: 56_214.51,
        264: 56_520.978,
        352: 55_789.493,
        1_056: 51_842.143,
    },
    ("qwen3.5-27b", "L40S", 4): {
        32: 313_376.825,
        96: 323_830.294,
        264: 389_577.222,
        352: 410_414.005,
        1_056: 702_472.238,
    },
}
"""Milliseconds of all prefill steps by match unit, by kernels that aiconfigurator-core 0.12.0 has measured: published
figures for tau-airline at blocks of 1,056, sequential, without state export."""


@cache
def prefill_chunks(unit: int) -> Int64:
    """int64[C, 3] of tau-airline: request, start, tokens."""
    config = EngineConfig(
        groups=parse_groups("mamba:1056*3,full:1056"), match_unit=unit, max_num_batched_tokens=8192
    )
    return replay(config, load_structure("tau-airline")[0]).prefill_chunks


@pytest.mark.parametrize(("server", "measured"), TAU_AIRLINE.items())
def test_the_best_unit_is_that_of_measured_kernels(
    server: tuple[str, str, int], measured: dict[int, float]
) -> None:
    """It flips: 264 or 352 on one server, unset (1,056) on the next, 32 on the last."""
    model, card, ranks = server
    times = RooflineStepTimes.of(ModelWork.of(named(model)), parse_hardware(card).gpu, ranks)
    estimated = {unit: float(times.prefill_s(*prefill_chunks(unit)[:, 1:].T).sum()) for unit in measured}
    best = min(estimated, key=estimated.__getitem__)
    assert measured[best] <= 1.01 * min(measured.values())
    for unit in measured:
        change, expected = estimated[unit] / estimated[1_056], measured[unit] / measured[1_056]
        assert change == pytest.approx(expected, abs=0.12)


class _Table:
    """Published TTFT by prompt length, between its rows by straight lines."""

    info = StepTimesInfo(source="server")
    tokens = (129, 513, 2_049, 8_193, 16_385)
    milliseconds = (179.5, 185.8, 187.0, 539.0, 908.0)

    def prefill_s(self, start: Int64, tokens: Int64) -> Float64:
        seconds: Float64 = np.interp(start + tokens, self.tokens, self.milliseconds) / 1000
        return seconds

    def step_s(self, shape: StepShape) -> float:
        raise NotImplementedError

    def decode_s(self, steps: int, requests: int, context: int) -> float:
        raise NotImplementedError


def test_published_kimi_k3_steps_cost_more_than_2000_tokens() -> None:
    """TTFT on eight B300 (SGLang, 2026-08)."""
    overhead = step_overhead(_Table())
    assert 2_000 < overhead.low <= overhead.high < 4_000


@pytest.mark.parametrize(
    "name",
    [
        "qwen3-next-80b-a3b",
        "granite-4.0-h-small",
        "lfm2-8b-a1b",
        "jamba-v0.1",
        "kimi-linear-48b-a3b",
    ],
)
@pytest.mark.parametrize("card", ["RTX 4090", "RTX 5090", "H100"])
def test_models_and_cards_without_measured_kernels(name: str, card: str) -> None:
    """More tokens and longer contexts take longer; a mixture's step overhead exceeds a dense model's on the card."""
    times = RooflineStepTimes.of(ModelWork.of(named(name)), parse_hardware(card).gpu)
    lengths = ints(1, 16, 64, 256, 1_024, 8_192)
    by_length = times.prefill_s(np.zeros_like(lengths), lengths)
    by_context = times.prefill_s(lengths, np.full_like(lengths, 64))
    assert np.all(np.diff(by_length) > 0) and np.all(np.diff(by_context) >= 0)
    dense = RooflineStepTimes.of(ModelWork.of(named("falcon-h1-7b")), times.gpu)
    assert step_overhead(times).high > step_overhead(dense).high > 30
