"""Blocks and paddings that real servers reported, recomputed from model configs and flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.model_sizes import ModelSizes, size_model
from kvtune.analyzers.sizing.serve_flags import ServeFlags

DATA = Path(__file__).parents[2] / "data"
ROWS = json.loads((DATA / "block-sizes" / "ground-truth.json").read_bytes())["entries"]

STATED_OTHERWISE: dict[str, dict[str, Any]] = {
    "G01": {"tensor_parallel_size": 1},
    "G26": {"tensor_parallel_size": 1, "num_speculative_tokens": 3},
    "G27": {"attention_backend": "XPU_FLASH_ATTN"},
    "G37": {"num_speculative_tokens": 2},
    "G42": {"kv_cache_dtype": "fp8", "mamba_ssm_cache_dtype": "auto"},
    "G47": {"kv_cache_dtype": "fp8", "max_model_len": 8192},
    "G48": {"mamba_ssm_cache_dtype": "bfloat16"},
    "G52": {"tensor_parallel_size": 2},
    "G54": {"tensor_parallel_size": 8},
    "G56": {"version": "0.27"},
    "G57": {"tensor_parallel_size": 4},
    "G58": {"tensor_parallel_size": 4},
    "G59": {"tensor_parallel_size": 4},
    "G65": {"kv_cache_dtype": "auto"},
    "G66": {"tensor_parallel_size": 4, "mamba_ssm_cache_dtype": "bfloat16"},
    "G69": {"num_speculative_tokens": 4},
    "G79": {"tensor_parallel_size": 1, "mamba_ssm_cache_dtype": "bfloat16"},
}
"""Inputs that the rows give in words (or not at all) and the data's README states as values."""

RELEASE = {
    "main 2026-01": "0.19",
    "main 2026-03-17": "0.19",
    "~0.17 (2026-03)": "0.17",
    "0.18-dev (2026-03-23)": "0.18",
    "PR text 2025-10": "0.19",
}
"""Versions that the rows give in words; what names no release at all takes the newest rules."""

CACHING_OF_MODE = {"align": True, "all": True, "none": False}

NOT_COMPARED = {
    "G05": "the dummy model's dimensions are not stated",
    "G61": "some input is not stated: the stated flags give 2,176",
    "G63": "the size is from a guide for another engine",
    "G64": "some input is not stated: the stated flags give 4,352",
    "G75": "Ascend sizes blocks by a rule of its own",
    "G76": "Ascend sizes blocks by a rule of its own",
    "G77": "the model is not named",
}


def flags_of(row: dict[str, Any]) -> ServeFlags:
    stated = row["flags"]
    mode = stated.get("mamba_cache_mode") or ""
    fields: dict[str, Any] = {
        "version": version_of(row["vllm_version"]),
        "enable_prefix_caching": stated.get("enable_prefix_caching", CACHING_OF_MODE.get(mode.split(" ")[0])),
        "max_model_len": stated.get("max_model_len") or 8192,
        "tensor_parallel_size": stated["tp"],
        "num_speculative_tokens": stated["num_speculative_tokens"],
        "kv_cache_dtype": stated["kv_cache_dtype"],
        "mamba_ssm_cache_dtype": stated["mamba_ssm_cache_dtype"],
        "mamba_cache_mode": mode.split(" ")[0] if mode.startswith(("align", "all")) else None,
        **STATED_OTHERWISE.get(row["id"], {}),
    }
    return ServeFlags(**fields)


def version_of(text: str) -> str | None:
    if text in RELEASE:
        return RELEASE[text]
    head = text.split()[0].split("-")[0]
    return head if head.startswith("0.") and not head.startswith("0.1.") else None


def resolved(row: dict[str, Any]) -> ModelSizes:
    path = DATA / "models" / "configs" / row["config"] / "config.json"
    return size_model(ModelConfig.parse(json.loads(path.read_bytes()), str(path)), flags_of(row))


NAMED = [row for row in ROWS if row["config"] is not None]


@pytest.mark.parametrize("row", NAMED, ids=[row["id"] for row in NAMED])
def test_block_and_padding(row: dict[str, Any]) -> None:
    sizes = resolved(row)
    attention = {
        sized.group.block_size
        for sized in sizes.groups
        if sized.group.kind == "full" and sized.group.cacheable
    }
    assert row["attention_block_size"] in attention
    if row["padding_pct"] is not None:
        assert sizes.block.padding_pct == row["padding_pct"]
    if row["mamba_block_size"] is not None:
        assert sizes.block.mamba_block_size == row["mamba_block_size"]


def test_every_row_is_compared_or_left_out_by_name() -> None:
    left_out = {row["id"] for row in ROWS if row["config"] is None}
    assert left_out == set(NOT_COMPARED)
    assert len(NAMED) == 47
