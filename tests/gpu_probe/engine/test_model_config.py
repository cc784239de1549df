"""config.json to layers: families, kinds in order, widths, and what is refused by name."""

from __future__ import annotations

import pytest

from kvtune.gpu_probe.engine.model_config import FAMILIES, model_spec
from kvtune.gpu_probe.engine.spec import (
    Attention,
    GatedDeltaNet,
    Mamba2,
    Mlp,
    Moe,
    ShortConv,
    block_kind,
    keep_layers,
)
from kvtune.gpu_probe.engine.stand_in import TINY_VOCAB, TINY_WIDTH, choose_model, shrink
from kvtune.tokenization.errors import UnusableInputError

QWEN = {
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 2560,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "intermediate_size": 9216,
        "vocab_size": 248320,
    },
}


def kinds(spec):
    return [block_kind(block.operator) for block in spec.blocks]


def test_qwen_hybrids_alternate_three_to_one():
    spec = model_spec(QWEN)
    assert kinds(spec)[::2] == ["gated_delta_net"] * 3 + ["attention"] + ["gated_delta_net"] * 3 + [
        "attention"
    ]
    attention = spec.blocks[6].operator
    assert attention == Attention(16, 4, 256, 1 / 16, rotary_dim=64, qk_norm=True, output_gate=True)
    # By hand: 2 * 16 * 128 + 32 * 128 convolved channels, as vLLM's page of 49,152 bytes in bfloat16 has them.
    delta = spec.blocks[0].operator
    assert isinstance(delta, GatedDeltaNet)
    assert delta.conv_size == 8192
    assert delta.conv_size * 3 * 2 == 49_152
    assert delta.state_shape == (32, 128, 128)


def test_nemotron_patterns_have_one_operator_a_layer():
    config = {
        "model_type": "nemotron_h",
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "hybrid_override_pattern": "M-*E",
        "mamba_num_heads": 8,
        "mamba_head_dim": 64,
        "n_routed_experts": 4,
    }
    spec = model_spec(config)
    assert [type(block.operator) for block in spec.blocks] == [Mamba2, Mlp, Attention, Moe]
    with pytest.raises(UnusableInputError, match=r"lacks the layer type 'X'"):
        model_spec({**config, "hybrid_override_pattern": "MX*E"})


def test_windows_and_their_rotations_are_kept():
    config = {
        "model_type": "gemma3_text",
        "hidden_size": 64,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "sliding_window": 24,
        "intermediate_size": 64,
    }
    spec = model_spec(config)
    windows = [block.operator.window for block in spec.blocks[::2]]
    assert windows == [24] * 5 + [None]
    assert spec.blocks[0].operator.rope_theta == 10_000.0
    assert spec.blocks[10].operator.rope_theta == 1_000_000.0


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "jamba"}, r"model_type: the bundled engine has no such model family \(found 'jamba'"),
        ({"model_type": 7}, "no such model family"),
        ({"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 8}, "num_attention_heads"),
        ({"model_type": "qwen3", "num_hidden_layers": -1, "hidden_size": 8}, "num_hidden_layers"),
        ({"model_type": "qwen3", "num_hidden_layers": "two"}, "num_hidden_layers"),
        (
            {"model_type": "lfm2", "num_hidden_layers": 1, "layer_types": ["ssm"], "num_attention_heads": 1},
            r"lacks the layer type 'ssm'",
        ),
        (
            {
                "model_type": "qwen3",
                "num_hidden_layers": 1,
                "hidden_size": 8,
                "num_attention_heads": 4,
                "num_key_value_heads": 3,
            },
            "num_key_value_heads",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(config, words):
    with pytest.raises(UnusableInputError, match=words):
        model_spec(config)


def test_kept_layers_are_the_first_of_each_kind_under_their_own_names():
    kept = keep_layers(model_spec(QWEN), 1)
    assert [block.name for block in kept.blocks] == [
        "layers.0.mixer",
        "layers.0.feed_forward",
        "layers.3.mixer",
        "layers.3.feed_forward",
    ]
    assert kept.hidden_size == 2560


def test_stand_ins_keep_rules_and_cut_sizes():
    small = shrink(model_spec(QWEN))
    assert (small.hidden_size, small.vocab_size) == (TINY_WIDTH, TINY_VOCAB)
    assert kinds(small)[::2] == ["gated_delta_net", "gated_delta_net", "attention", "attention"]
    attention = small.blocks[4].operator
    assert attention.output_gate
    assert attention.rotary_dim == 8  # a quarter, as in the model


@pytest.mark.parametrize(
    ("arguments", "rung"),
    [
        ({"device": "cpu", "layers": None, "has_weights": False}, "L0"),
        ({"device": "cpu", "layers": 1, "has_weights": True}, "L1"),
        ({"device": "cuda", "layers": None, "has_weights": False}, "L1"),
        ({"device": "cuda", "layers": None, "has_weights": True}, "L2"),
    ],
)
def test_the_rung_says_what_is_run(arguments, rung):
    assert choose_model(model_spec(QWEN), **arguments).rung.startswith(rung)
    assert choose_model(None, **arguments).folds_ids


def test_every_family_is_reached():
    assert set(FAMILIES) >= {"qwen3_next", "granitemoehybrid", "nemotron_h", "lfm2", "gemma3", "bamba"}
    spec = model_spec(
        {
            "model_type": "lfm2",
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "full_attn_idxs": [1],
            "intermediate_size": 96,
        }
    )
    assert [type(block.operator) for block in spec.blocks[::2]] == [ShortConv, Attention]
    assert spec.blocks[1].operator.intermediate == 256  # 2/3 of 96, rounded up to 256
