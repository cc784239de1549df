"""Groups and blocks of every model config, and how flags and releases move them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from kvtune.analyzers.sizing.families import FAMILIES
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.model_sizes import ModelSizes, size_model
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.tokenization.errors import UnusableInputError

CONFIGS = Path(__file__).parents[2] / "data" / "models" / "configs"
NAMES = sorted(path.parent.name for path in CONFIGS.glob("*/config.json"))


def document(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CONFIGS / name / "config.json").read_bytes())
    return loaded


def sizes(name: str, **flags: Any) -> ModelSizes:
    return size_model(ModelConfig.parse(document(name), name), ServeFlags(**flags))


def groups(name: str, **flags: Any) -> str:
    """`kind block LAYERSxGROUPS`, layers with the padding that makes groups equal; `ring` for circular buffers."""
    runs = groupby(
        sizes(name, **flags).groups,
        key=lambda sized: (sized.group.kind, sized.group.block_size, sized.group.cacheable),
    )
    parts = []
    for (kind, block, cacheable), run in runs:
        members = list(run)
        name = {"sliding_window": "swa", "chunked_local": "chunk"}.get(kind, kind) if cacheable else "ring"
        parts.append(f"{name} {block} {max(sized.layers for sized in members)}x{len(members)}")
    return ", ".join(parts)


@pytest.mark.parametrize(
    ("name", "flags", "expected"),
    [
        ("qwen3-next-80b-a3b", {}, "mamba 544 12x3, full 544 12x1"),
        ("qwen3-next-27b-graft", {"kv_cache_dtype": "fp8"}, "mamba 800 16x3, full 800 16x1"),
        ("qwen3.5-0.8b", {"kv_cache_dtype": "fp8"}, "mamba 1072 6x3, full 1072 6x1"),
        ("qwen3.5-4b", {}, "mamba 528 8x3, full 528 8x1"),
        ("qwen3.5-27b-text", {}, "mamba 784 16x3, full 784 16x1"),
        ("qwen3.5-9b-text", {"kv_cache_dtype": "fp8"}, "mamba 1056 8x3, full 1056 8x1"),
        ("qwen3.5-35b-a3b", {"kv_cache_dtype": "fp8"}, "mamba 2096 10x3, full 2096 10x1"),
        ("qwen3.5-122b-a10b", {"tensor_parallel_size": 2}, "mamba 2096 12x3, full 2096 12x1"),
        ("qwen3.5-397b-a17b", {}, "mamba 2096 15x3, full 2096 15x1"),
        ("nemotron-3-nano-30b-a3b", {"kv_cache_dtype": "fp8"}, "mamba 4176 6x4, full 4176 6x1"),
        ("nemotron-3.5-lightning-30b-a3b", {}, "mamba 2096 6x4, full 2096 6x1"),
        ("nemotron-3-super-120b-a12b", {"kv_cache_dtype": "fp8"}, "mamba 8320 8x5, full 8320 8x1"),
        ("nemotron-nano-9b-v2", {}, "mamba 1312 4x7, full 1312 4x1"),
        ("nemotron-h-8b", {}, "mamba 1040 4x6, full 1040 4x1"),
        ("granite-4.0-h-350m", {}, "mamba 400 4x7, full 400 4x1"),
        ("granite-4.0-h-tiny", {}, "mamba 400 4x9, full 400 4x1"),
        ("granite-4.0-h-small", {}, "mamba 528 4x9, full 528 4x1"),
        ("falcon-h1-7b", {"kv_cache_dtype": "fp8"}, "full 3120 44x1, mamba 3120 44x1"),
        ("bamba-9b", {}, "mamba 528 3x10, full 528 3x1"),
        ("jamba-v0.1", {}, "mamba 80 4x7, full 80 4x1"),
        # Shared attention blocks are built before any layer, so they come first.
        ("zamba2-7b", {}, "full 48 13x1, mamba 48 12x7"),
        ("lfm2-1.2b", {}, "mamba 16 5x2, full 16 6x1"),
        ("lfm2-8b-a1b", {}, "mamba 16 6x3, full 16 6x1"),
        ("minimax-text-01", {}, "mamba 512 10x7, full 512 10x1"),
        ("kimi-linear-48b-a3b", {}, "mamba 1920 7x3, full 1920 7x1"),
        ("kimi-linear-48b-a3b", {"version": "0.19", "tensor_parallel_size": 2, "enable_prefix_caching": True},
         "mamba 960 7x3, full 960 7x1"),
        ("kimi-k3", {"tensor_parallel_size": 8}, "mamba 768 23x3, full 768 24x1"),
        ("ling-3.0-flash", {}, "mamba 1920 7x5, full 1920 7x1"),
        ("solar-open2-250b", {}, "full 1072 12x1, mamba 1072 12x3"),
        ("gpt-oss-20b", {}, "swa 16 12x1, full 16 12x1"),
        ("gemma-3-4b", {}, "swa 16 5x6, full 16 5x1"),
        ("gemma-4-e4b", {}, "swa 32 4x5, full 16 4x1"),
        ("gemma-4-26b-a4b", {}, "swa 16 5x5, full 32 5x1"),
        ("llama-4-scout", {}, "chunk 16 12x3, full 16 12x1"),
        ("deepseek-v3", {"attention_backend": "FLASHMLA"}, "full 64 61x1"),
        ("qwen3-8b", {}, "full 16 36x1"),
        # A drafter's layer joins the full attention group: 48 + 17 layers, three of them padding (6.25%).
        ("qwen3.5-27b", {"kv_cache_dtype": "nvfp4", "num_speculative_tokens": 3, "speculative_method": "mtp"},
         "mamba 2848 16x3, full 2848 17x1"),
        # Logged: group sizes 1584 x 4, 8, 1584; and 262144 x 4, 4, 400 without prefix caching.
        ("qwen3.8-flash-next", {"num_speculative_tokens": 1, "speculative_method": "mtp"},
         "mamba 1584 12x4, ring 8 12x1, full 1584 13x1"),
        ("glm-5.3-flash", {"tensor_parallel_size": 4}, "mamba 1152 9x4, full 1152 11x1, ring 4 11x1"),
    ],
)  # fmt: skip
def test_groups_in_the_engines_order(name: str, flags: dict[str, Any], expected: str) -> None:
    assert groups(name, **flags) == expected


def test_without_caching_a_state_block_spans_the_longest_sequence() -> None:
    flags = {"tensor_parallel_size": 4, "mamba_ssm_cache_dtype": "bfloat16", "enable_prefix_caching": False}
    assert groups("qwen3.8-flash-next", **flags) == "mamba 262144 12x4, ring 4 12x1, full 400 12x1"
    with pytest.raises(UnusableInputError, match="--max-model-len"):
        sizes("ling-3.0-flash", enable_prefix_caching=False)


def test_padding_layers_are_the_engines_figure() -> None:
    drafted = sizes("qwen3.5-27b", num_speculative_tokens=3, speculative_method="mtp")
    assert (drafted.padding_layers, drafted.padding_layers_pct) == (3, 6.25)
    assert [sized.group.draft for sized in drafted.groups] == [False, False, False, True]
    assert not any(
        sized.group.draft
        for sized in sizes(
            "qwen3.5-27b", version="0.30", num_speculative_tokens=3, speculative_method="mtp"
        ).groups
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_config_is_sized_and_pages_agree(name: str) -> None:
    found = sizes(name, max_model_len=8192)
    block = found.block
    if block.mamba_page_bytes is not None and block.attention_bytes_per_token is not None:
        page = block.attention_block_size * block.attention_bytes_per_token
        assert page >= block.mamba_page_bytes
        assert block.attention_block_size % block.alignment == 0
        assert (
            block.attention_block_size - block.alignment
        ) * block.attention_bytes_per_token < block.mamba_page_bytes
    assert {sized.group.mode for sized in found.groups if sized.group.kind == "mamba"} <= {"align"}


@pytest.mark.parametrize(
    ("flags", "block"),
    [
        ({}, 528),
        ({"kv_cache_dtype": "fp8"}, 1056),
        ({"kv_cache_dtype": "int8_per_token_head"}, 1040),
        ({"mamba_ssm_cache_dtype": "float16"}, 272),
        ({"tensor_parallel_size": 2}, 528),
        ({"tensor_parallel_size": 8}, 272),
        ({"num_speculative_tokens": 3}, 544),
        ({"block_size": 256}, 768),
        ({"block_size": 1024}, 1024),
        ({"attention_backend": "ROCM_AITER_UNIFIED_ATTN"}, 576),
        ({"gdn_prefill_backend": "flashinfer"}, 576),
        ({"gdn_prefill_backend": "flashinfer", "version": "0.32"}, 528),
        ({"block_size": 256, "version": "0.19", "enable_prefix_caching": True}, 528),
        ({"state_export": 64, "version": "0.33"}, 576),
    ],
)
def test_what_moves_the_block_of_qwen3_5_4b(flags: dict[str, Any], block: int) -> None:
    """49,152 + 2,097,152 = 2,146,304 bytes of state against 4,096 bytes a token: 16 x ceil(32.75)."""
    assert sizes("qwen3.5-4b", **flags).block.attention_block_size == block


def test_mode_all_rounds_to_the_kernels_chunk() -> None:
    """806,400 bytes at 2,048 a token: 394 tokens, 400 in align, 512 with chunks of 256."""
    cached = {"enable_prefix_caching": True}  # off for hybrid models before 0.28
    assert sizes("granite-4.0-h-tiny", version="0.27", **cached).block.attention_block_size == 512
    assert sizes("granite-4.0-h-tiny", version="0.28").block.attention_block_size == 400
    assert sizes("granite-4.0-h-tiny", version="0.31", mamba_cache_mode="all").block.mode == "all"
    with pytest.raises(UnusableInputError, match=r"0\.32 removed all"):
        sizes("granite-4.0-h-tiny", version="0.32", mamba_cache_mode="all")
    assert sizes("qwen3.5-4b", version="0.27", **cached).block.mode == "align"


@pytest.mark.parametrize("version", ["0.26", "0.27"])
def test_hybrid_models_do_not_cache_by_default_before_0_28(version: str) -> None:
    block = sizes("qwen3.5-4b", version=version).block
    assert (block.prefix_caching, block.mode) == (False, "none")
    assert sizes("qwen3-8b", version=version).block.prefix_caching
    assert sizes("qwen3.5-4b", version="0.28").block.prefix_caching


def test_state_exports_are_known_by_family_and_release() -> None:
    def export(name: str, **flags: Any) -> int | None:
        return next(
            sized.group.export_alignment
            for sized in sizes(name, **flags).groups
            if sized.group.kind == "mamba"
        )

    assert export("granite-4.0-h-tiny") == 1
    assert export("granite-4.0-h-tiny", version="0.31") is None
    assert export("qwen3.5-4b") is None
    assert export("qwen3.5-4b", gdn_prefill_backend="flashinfer") == 64
    assert export("kimi-k3", tensor_parallel_size=8, state_export=16) == 16


def test_without_the_hybrid_manager_windows_are_kept_in_full() -> None:
    assert groups("gpt-oss-20b", disable_hybrid_kv_cache_manager=True) == "full 16 24x1"


def test_vision_parts_are_not_read() -> None:
    config = document("qwen3.5-27b")
    config["vision_config"].update(num_hidden_layers=3, head_dim=1, layer_types=["x"])
    assert size_model(ModelConfig.parse(config), ServeFlags()).block.attention_block_size == 784


def test_null_and_missing_mean_the_same() -> None:
    config = document("qwen3-next-80b-a3b")
    config["layer_types"] = None
    assert size_model(ModelConfig.parse(config), ServeFlags()).block.attention_block_size == 544


def test_a_checkpoint_may_ask_for_its_kv_dtype() -> None:
    config = document("nemotron-3-nano-30b-a3b")
    config["quantization_config"] = {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}
    assert size_model(ModelConfig.parse(config), ServeFlags()).block.attention_block_size == 4176
    flags = replace(ServeFlags(), kv_cache_dtype="bfloat16")
    assert size_model(ModelConfig.parse(config), flags).block.attention_block_size == 2096


@pytest.mark.parametrize(
    ("name", "change", "flags", "said"),
    [
        ("qwen3-8b", {"model_type": "whisper", "architectures": ["WhisperForX"]}, {}, r"whisper \(WhisperForX\)"),
        ("qwen3-8b", {"model_type": None}, {}, "model_type.*missing"),
        ("qwen3-next-80b-a3b", {"linear_num_value_heads": None}, {}, "linear_num_value_heads.*missing"),
        ("qwen3-next-80b-a3b", {"linear_num_value_heads": "32"}, {}, "found '32', wanted an integer"),
        ("qwen3-next-80b-a3b", {"linear_num_value_heads": True}, {}, "found True"),
        ("qwen3-next-80b-a3b", {"num_hidden_layers": 10**9}, {}, "num_hidden_layers.*at most"),
        ("granite-4.0-h-tiny", {"layer_types": ["mamba"]}, {}, "found 1 entries, wanted one for each of 40 layers"),
        ("nemotron-h-8b", {"hybrid_override_pattern": "MX"}, {}, "hybrid_override_pattern.*'X'"),
        ("qwen3-8b", {}, {"tensor_parallel_size": 3}, "--tensor-parallel-size.*found 3, wanted a divisor of 32"),
        ("qwen3.5-4b", {}, {"kv_cache_dtype": "turboquant_4bit_nc"}, "turboquant_4bit_nc.*--startup-log"),
        ("qwen3.5-4b", {}, {"kv_cache_dtype": "fp9"}, "unknown KV cache dtype.*fp9"),
        ("qwen3.5-4b", {}, {"mamba_ssm_cache_dtype": "int3"}, "unknown state dtype.*int3"),
        ("qwen3.5-4b", {}, {"attention_backend": "ABACUS"}, "--attention-backend.*ABACUS"),
        ("qwen3.5-4b", {}, {"version": "newest"}, "not a vLLM version"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line(
    name: str, change: dict[str, Any], flags: dict[str, Any], said: str
) -> None:
    config = document(name) | change
    with pytest.raises(UnusableInputError, match=said) as caught:
        size_model(ModelConfig.parse(config, "config.json"), ServeFlags(**flags))
    assert "\n" not in str(caught.value)


def test_sizes_beyond_reason_are_refused_at_once() -> None:
    config = document("qwen3.5-4b")
    config["text_config"]["linear_value_head_dim"] = 10**15
    with pytest.raises(UnusableInputError, match="out of range"):
        size_model(ModelConfig.parse(config), ServeFlags())


def test_not_a_config() -> None:
    with pytest.raises(UnusableInputError, match=r"config\.json: not a model config \(found list"):
        ModelConfig.parse([], "config.json")


def test_every_family_has_a_config_or_is_plain() -> None:
    seen = {ModelConfig.parse(document(name)).model_type for name in NAMES}
    tested = {FAMILIES[name] for name in seen if name in FAMILIES}
    assert set(FAMILIES.values()) == tested
