"""Names of GPUs as people, drivers and instance lists write them."""

from __future__ import annotations

import pytest

from kvtune.analyzers.hardware import parse_hardware
from kvtune.analyzers.hardware.data_sheets import DATA_SHEETS
from kvtune.tokenization.errors import UnusableInputError


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("H100", "H100", None),
        ("NVIDIA H100 80GB HBM3", "H100", None),
        ("NVIDIA H100 80GB HBM3x2", "H100", 2),
        ("NVIDIA H100 PCIe", "H100-PCIe", None),
        ("NVIDIA H100 NVL", "H100-NVL", None),
        ("h200 x 8", "H200", 8),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB", None),
        ("A100-80GB", "A100-80GB", None),
        ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe", None),
        ("L40Sx4", "L40S", 4),
        ("L4", "L4", None),
        ("NVIDIA B200", "B200", None),
        ("GB200", "GB200", None),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000", None),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada", None),
        ("NVIDIA GeForce RTX 4090", "RTX-4090", None),
        ("rtx5090x2", "RTX-5090", 2),
        ("NVIDIA H20", "H20", None),
        ("AMD Instinct MI300X", "MI300X", None),
        ("NVIDIA GB10", "GB10", None),
    ],
)
def test_names(text: str, name: str, count: int | None) -> None:
    found = parse_hardware(text)
    assert (found.gpu.name, found.count) == (name, count)


def test_every_card_is_found_by_its_own_name() -> None:
    for sheet in DATA_SHEETS:
        assert parse_hardware(sheet.name).gpu.name == sheet.name


def test_a_data_sheet_of_ones_own() -> None:
    gpu = parse_hardware("memory=48GiB, bandwidth=864GB/s, bf16=362TFLOPS").gpu
    assert (gpu.memory_bytes, gpu.bandwidth_byte_s, gpu.bf16_flop_s) == (48 * 2**30, 864e9, 362e12)
    assert parse_hardware("memory=180GiB,bandwidth=8TB/s,bf16=2.25PFLOPS").gpu.bandwidth_byte_s == 8e12


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("abacus", "one of H100, H100-PCIe"),
        ("", "unknown GPU"),
        ("H100x0", "NAMExN"),
        ("H100x9999", "NAMExN"),
        ("memory=48GiB", "lacks bandwidth and bf16"),
        ("memory=0GiB,bandwidth=1GB/s,bf16=1TFLOPS", "is unusable"),
        ("memory=48GiB,memory=48GiB,bandwidth=864GB/s,bf16=362TFLOPS", "is unusable"),
        ("memory=48GiB,bandwidth=fast,bf16=362TFLOPS", "'bandwidth=fast'"),
    ],
)
def test_what_is_no_gpu_is_refused(text: str, words: str) -> None:
    with pytest.raises(UnusableInputError, match="--hardware") as caught:
        parse_hardware(text)
    assert words in str(caught.value)
