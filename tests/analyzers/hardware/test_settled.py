"""What a GPU settles: defaults of the argument layer by release, the prefill kernel, the pool."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtune.analyzers.hardware import parse_hardware, settle
from kvtune.analyzers.hardware.pool_estimate import estimate_pool
from kvtune.analyzers.profiles.server_defaults import batch_defaults
from kvtune.analyzers.sizing.engine_config import engine_config_from_sources
from kvtune.analyzers.sizing.families import model_layers
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.model_sizes import size_model
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.analyzers.sizing.sources import SizeSources
from kvtune.analyzers.step_times.model_work import ModelWork

CONFIGS = Path(__file__).parents[2] / "data" / "models" / "configs"


def config_of(name: str) -> ModelConfig:
    return ModelConfig.parse(json.loads((CONFIGS / name / "config.json").read_text()))


@pytest.mark.parametrize(
    ("release", "card", "expected"),
    [
        ((0, 33), "B200", (16_384, 1_024)),
        ((0, 28), "MI300X", (16_384, 1_024)),
        ((0, 27), "B200", (8_192, 1_024)),  # the tier of 160 GiB came with 0.28
        ((0, 33), "H100", (8_192, 1_024)),
        ((0, 26), "H100", (8_192, 1_024)),
        ((0, 33), "A100-80GB", (2_048, 256)),
        ((0, 33), "L40S", (2_048, 256)),
        ((0, 33), "GB10", (2_048, 256)),
        ((0, 32), "GB10", (8_192, 1_024)),  # 0.33 takes it out
    ],
)
def test_batch_defaults_of_the_api_server(
    release: tuple[int, int], card: str, expected: tuple[int, int]
) -> None:
    gpu = parse_hardware(card).gpu
    assert batch_defaults(release, gpu.memory_bytes, gpu.name) == expected


@pytest.mark.parametrize(
    ("version", "card", "model", "backend"),
    [
        ("0.33.0", "H100", "qwen3.5-27b", "flashinfer"),
        ("0.32.0", "H100", "qwen3.5-27b", None),  # exports came with 0.33
        ("0.33.0", "B200", "qwen3.5-27b", "flashinfer"),
        ("0.33.0", "RTX-PRO-6000", "qwen3.5-27b", "flashinfer"),
        ("0.33.0", "L40S", "qwen3.5-27b", "triton"),
        ("0.33.0", "MI300X", "qwen3.5-27b", "triton"),
        ("0.33.0", "H100", "kimi-linear-48b-a3b", "flashkda"),
        ("0.33.0", "A100", "kimi-linear-48b-a3b", "triton"),
        ("0.33.0", "H100", "granite-4.0-h-small", None),
    ],
)
def test_the_prefill_kernel(version: str, card: str, model: str, backend: str | None) -> None:
    layers = model_layers(config_of(model))
    found = settle(parse_hardware(card).gpu, ServeFlags(version=version), layers)
    assert found.prefill_backend == backend
    assert (found.assumed is not None) == (card in ("B200", "RTX-PRO-6000"))


def test_a_hopper_card_rounds_blocks_and_exports_states() -> None:
    """Qwen3.5-27B, bf16: 784 by itself; multiples of 64 where FlashInfer's kernel runs: 832, exported at 64."""
    sources = SizeSources(model_config=config_of("qwen3.5-27b"), hardware=parse_hardware("H100"))
    config, server = engine_config_from_sources(sources)
    assert {group.block_size for group in config.groups} == {832}
    assert {group.export_alignment for group in config.groups if group.kind == "mamba"} == {64}
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (8192, 1024)
    assert server.settled is not None and server.settled.num_blocks is not None
    assert config.num_blocks == server.settled.num_blocks.estimate
    older, _ = engine_config_from_sources(
        SizeSources(
            flags=ServeFlags(version="0.32.0"),
            model_config=config_of("qwen3.5-27b"),
            hardware=parse_hardware("H100"),
        )
    )
    assert {group.block_size for group in older.groups} == {784}


def test_what_is_said_wins_over_what_the_card_settles() -> None:
    flags = ServeFlags(
        max_num_batched_tokens=4096, max_num_seqs=64, gdn_prefill_backend="triton", num_gpu_blocks=77
    )
    config, _ = engine_config_from_sources(
        SizeSources(flags=flags, model_config=config_of("qwen3.5-27b"), hardware=parse_hardware("H100"))
    )
    assert (config.max_num_batched_tokens, config.max_num_seqs, config.num_blocks) == (4096, 64, 77)
    assert {group.block_size for group in config.groups} == {784}


def test_a_pool_said_to_be_unlimited_is_not_estimated_away() -> None:
    config, _ = engine_config_from_sources(
        SizeSources(
            flags=ServeFlags(unlimited_pool=True),
            model_config=config_of("qwen3.5-27b"),
            hardware=parse_hardware("H100"),
        )
    )
    assert config.num_blocks is None


def test_the_pool_of_a_27b_on_one_h100() -> None:
    """Weights of 50.1 GiB leave 19 GiB of 0.92 * 79.6: blocks of 784 tokens * 4 KiB * 16 layers take 49 MiB: 399."""
    config = config_of("qwen3.5-27b")
    work = ModelWork.of(config)
    assert work.stored_bytes / 2**30 == pytest.approx(50.1, abs=0.1)
    pool = estimate_pool(parse_hardware("H100").gpu, work, size_model(config, ServeFlags()), 1)
    assert pool is not None
    assert pool.estimate == pytest.approx(399, abs=2)
    assert pool.low < pool.estimate < pool.high
    assert estimate_pool(parse_hardware("L40S").gpu, work, size_model(config, ServeFlags()), 1) is None
