"""What a step reads and computes: one model by hand, and the published sizes of real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.step_times.feed_forward import FeedForward
from kvtune.analyzers.step_times.model_work import AttentionWork, ModelWork
from kvtune.tokenization.errors import UnusableInputError

CONFIGS = Path(__file__).parents[2] / "data" / "models" / "configs"

TINY = {
    "model_type": "qwen3_next",
    "dtype": "bfloat16",
    "hidden_size": 100,
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 50,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 20,
    "linear_conv_kernel_dim": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 30,
    "shared_expert_intermediate_size": 40,
    "vocab_size": 1000,
}
"""Three gated delta net layers and one with attention; experts in each."""


def parsed(document: dict[str, Any]) -> ModelConfig:
    return ModelConfig.parse(document, "config.json")


def named(name: str) -> ModelConfig:
    return parsed(json.loads((CONFIGS / name / "config.json").read_bytes()))


def test_tiny_model_by_hand() -> None:
    work = ModelWork.of(parsed(TINY))
    gated_delta_net = 100 * (10 + 10 + 40 + 40) + 100 * 4 + 40 * 100
    attention = 100 * 200 + 100 * 100 + 100 * 100  # queries with their gate, keys and values, output
    shared_expert, router = 100 * 80 + 40 * 100, 100 * 8
    assert work.dense_weights == 3 * gated_delta_net + attention + 4 * (shared_expert + router) == 134_400
    assert work.experts is not None
    assert work.experts.expert_weights == 100 * 60 + 30 * 100
    assert work.expert_weights == 4 * 8 * 9_000
    assert work.active_weights == 134_400 + 4 * 2 * 9_000 + 100_000
    assert work.total_weights == 134_400 + 288_000 + 2 * 100_000
    assert work.parts == 8
    # Inputs and outputs of each matrix: 444 a gated delta net, 700, 320 a shared expert, 108 a router, 290 an expert.
    assert work.activation_elements == 3 * 444 + 700 + 4 * (320 + 108) + 4 * 2 * 290
    # Three positions of 60 convolved channels and two matrices of 20 x 10, in bf16.
    assert work.state_bytes == 3 * 2 * (3 * 60 + 2 * 20 * 10)
    assert work.attention == (AttentionWork(layers=1, pair_flops=2 * 2 * 100, position_bytes=200),)
    assert work.stored_bytes == 2 * 622_400
    assert not work.is_quantized


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("deepseek-v3", 671, 37),
        ("falcon-h1-7b", 7.59, 7.59),
        ("gemma-4-26b-a4b", 25.2, 3.8),
        ("gemma-4-e4b", 8, 4.5),  # 2.8 of them embeddings of layers
        ("granite-4.0-h-small", 32, 9),
        ("granite-4.0-h-tiny", 7, 1.5),
        ("jamba-v0.1", 52, 12),
        ("kimi-linear-48b-a3b", 48, 3),
        ("lfm2-1.2b", 1.17, 1.17),
        ("lfm2-8b-a1b", 8.3, 1.5),
        ("llama-4-scout", 109, 17),
        ("minimax-text-01", 456, 45.9),
        ("qwen3-next-80b-a3b", 80, 3.3),
        ("qwen3.5-27b", 27, 27),
        ("qwen3.5-35b-a3b", 35, 3.2),
        ("qwen3.5-122b-a10b", 122, 10),
        ("zamba2-7b", 7.4, 10.9),  # two shared blocks, used 13 times
    ],
)
def test_published_sizes(name: str, total: float, active: float) -> None:
    """In 10^9 weights, by the models' names and cards. Some count the embedding twice, once or not at all."""
    work = ModelWork.of(named(name))
    embedding = work.embedding_weights
    assert work.total_weights - embedding <= 1.025 * total * 1e9
    assert work.total_weights >= 0.975 * total * 1e9
    assert work.active_weights - work.head_weights <= 1.05 * active * 1e9
    assert work.active_weights + embedding >= 0.95 * active * 1e9


@pytest.mark.parametrize(
    ("name", "layers", "expert_layers"),
    [
        ("jamba-v0.1", 32, 16),  # every second, from the second on
        ("lfm2-8b-a1b", 24, 22),  # two dense ones first
        ("kimi-linear-48b-a3b", 27, 26),
        ("glm-5.3-flash", 45, 42),  # by mlp_layer_types
        ("llama-4-scout", 48, 48),
        ("zamba2-7b", 13, 0),  # in the hybrid layers alone
        ("falcon-h1-7b", 44, 0),
    ],
)
def test_feed_forward_layers(name: str, layers: int, expert_layers: int) -> None:
    feed_forward = FeedForward.of(named(name))
    assert feed_forward.layers == layers
    assert (feed_forward.experts.layers if feed_forward.experts else 0) == expert_layers


def test_nemotron_layers_hold_one_part_each() -> None:
    document = {
        "model_type": "nemotron_h",
        "hidden_size": 64,
        "num_hidden_layers": 5,
        "hybrid_override_pattern": "M-ME*",
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 1,
        "conv_kernel": 4,
        "intermediate_size": 200,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 50,
        "moe_latent_size": 16,
        "moe_shared_expert_intermediate_size": 80,
        "vocab_size": 100,
    }
    work = ModelWork.of(parsed(document))
    mamba = 64 * (2 * 64 + 2 * 8 + 4) + 64 * 64
    attention = 64 * 64 + 64 * 64 + 64 * 64
    dense, shared, router, latent = 2 * 64 * 200, 2 * 64 * 80, 64 * 4, 2 * 64 * 16
    assert work.parts == 5
    assert work.dense_weights == 2 * mamba + attention + dense + shared + router + latent
    assert work.experts is not None and work.experts.expert_weights == 2 * 16 * 50


def test_latent_attention_expands_earlier_rows() -> None:
    work = ModelWork.of(named("deepseek-v3"))
    (attention,) = work.attention
    assert attention.layers == 61
    assert attention.pair_flops == 2 * 128 * (192 + 128)
    assert attention.position_bytes == 2 * (512 + 64)
    assert attention.expanded_weights == 512 * 128 * (128 + 128)


def test_sparse_attention_reaches_what_its_indexer_selects() -> None:
    assert [kind.reach for kind in ModelWork.of(named("glm-5.3-flash")).attention] == [2048]


def test_windows_are_kept_apart() -> None:
    kinds = ModelWork.of(named("gemma-4-26b-a4b")).attention
    assert [(kind.layers, kind.reach) for kind in kinds] == [(25, 1024), (5, None)]


@pytest.mark.parametrize(
    "field", ["hidden_size", "vocab_size", "moe_intermediate_size", "num_experts_per_tok"]
)
def test_missing_sizes_are_refused_by_name(field: str) -> None:
    with pytest.raises(
        UnusableInputError, match=rf"^config\.json: {field}: .*cannot be counted.*missing"
    ) as caught:
        ModelWork.of(parsed({key: value for key, value in TINY.items() if key != field}))
    assert "--groups" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "dense", "experts"),
    [
        ({"quant_method": "fp8"}, 1.0, 1.0),
        ({"quant_method": "mxfp4"}, 2.0, 0.53125),  # experts alone
        ({"quant_method": "awq", "bits": 4}, 0.515625, 0.515625),
        ({"quant_method": "gptq", "bits": 8}, 1.0, 1.0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5625, 0.5625),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 1.0, 1.0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"weights": {"num_bits": 8, "type": "float"}, "input_activations": {"num_bits": 8}},
                    "b": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}},
                },
            },
            0.5625,
            0.5625,
        ),
    ],
)
def test_quantized_weights(section: dict[str, Any], dense: float, experts: float) -> None:
    work = ModelWork.of(parsed(TINY | {"quantization_config": section}))
    assert (work.dense_format.bytes, work.expert_format.bytes) == (dense, experts)
    assert work.is_quantized
    assert work.stored_bytes == 134_400 * dense + 288_000 * experts + 2 * 200_000


def test_arithmetic_needs_tensor_cores_for_it() -> None:
    work = ModelWork.of(parsed(TINY | {"quantization_config": {"quant_method": "fp8"}}))
    assert [work.dense_format.speed(capability) for capability in (80, 89, 90)] == [1.0, 2.0, 2.0]


def test_unknown_quantization_is_refused() -> None:
    with pytest.raises(UnusableInputError, match=r"quantization_config.*'quip'"):
        ModelWork.of(parsed(TINY | {"quantization_config": {"quant_method": "quip"}}))
