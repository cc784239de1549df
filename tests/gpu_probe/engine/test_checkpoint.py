"""Real weights: tiny random models of the transformers library, their tensors loaded, their logits as the oracle."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kvtune.analyzers.layout import KVCacheGroup  # noqa: E402
from kvtune.gpu_probe.engine.checkpoint import load_weights  # noqa: E402
from kvtune.gpu_probe.engine.model import Decoder  # noqa: E402
from kvtune.gpu_probe.engine.model_config import model_spec  # noqa: E402
from kvtune.gpu_probe.engine.ops.fast import FastOps  # noqa: E402
from kvtune.gpu_probe.engine.pools import CachePools, assign_layers  # noqa: E402
from kvtune.gpu_probe.engine.safetensors_file import SafetensorsFolder  # noqa: E402
from kvtune.gpu_probe.engine.step import Segment, build_step  # noqa: E402
from kvtune.tokenization.errors import UnusableInputError  # noqa: E402

COMMON = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_expand": 2}
CONFIGS = {
    "qwen3_next": {
        **COMMON,
        **LINEAR,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "mlp_only_layers": [1],
    },
    "qwen3_5_text": {**COMMON, **LINEAR, "tie_word_embeddings": True},
    "granitemoehybrid": {
        **COMMON,
        **MAMBA,
        "layer_types": ["mamba", "attention", "mamba", "mamba"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 48,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.7,
        "logits_scaling": 2.0,
        "attention_multiplier": 0.2,
        "tie_word_embeddings": False,
    },
    "bamba": {**COMMON, **MAMBA, "attn_layer_indices": [2]},
    "nemotron_h": {
        **COMMON,
        "hybrid_override_pattern": "M*-E",
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 48,
        "routed_scaling_factor": 1.5,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "intermediate_size": 96,
    },
    "lfm2": {
        **COMMON,
        "layer_types": ["conv", "full_attention", "conv", "conv"],
        "block_auto_adjust_ff_dim": False,
    },
    "gemma3_text": {**COMMON, "sliding_window": 24, "query_pre_attn_scalar": 20},
    "qwen3": {**COMMON, "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}},
    "qwen2": {key: value for key, value in COMMON.items() if key != "head_dim"},
    "qwen3_moe": {
        **COMMON,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "lfm2_moe": {
        **COMMON,
        "layer_types": ["conv", "full_attention", "conv", "conv"],
        "num_dense_layers": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "mistral": {**COMMON, "sliding_window": 24, "head_dim": 16},
}


def write_safetensors(path, tensors):
    header, parts, at = {}, [], 0
    for name, tensor in tensors.items():
        data = tensor.contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(parts))


def engine_logits(spec, weights, ids, shares):
    kinds = {"mamba": KVCacheGroup("mamba", 48), "full": KVCacheGroup("full", 48)}
    window = next((b.operator.window for b in spec.blocks if getattr(b.operator, "window", None)), None)
    groups = [*kinds.values(), *([KVCacheGroup("sliding_window", 48, window=window)] if window else [])]
    layers = assign_layers(spec, groups)
    pools = CachePools(spec, layers, 32, dtype=torch.float32)
    group_of = {block: index for index, group in enumerate(layers) for block in group.blocks}
    decoder = Decoder(spec, weights, FastOps(), group_of)
    count = -(-len(ids) // 48)
    tables = tuple(np.arange(1 + index * count, 1 + (index + 1) * count) for index in range(len(groups)))
    out, at = [], 0
    for size in shares:
        step, _ = build_step([Segment(ids[at : at + size], at, tables)], layers)
        out.append(decoder.forward(step, pools, every_row=True))
        at += size
    return torch.cat(out)


@pytest.mark.slow
@pytest.mark.parametrize("family", CONFIGS)
def test_logits_equal_the_transformers_librarys(family, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(family, **CONFIGS[family])
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, parameter in theirs.named_parameters():
        with torch.no_grad():
            if parameter.ndim == 1 and not name.endswith(("A_log", "dt_bias")):
                parameter.add_(0.2 * torch.randn_like(parameter))  # norms away from one, biases from zero
            elif parameter.ndim > 1:
                parameter.mul_(4)  # logits away from ties
    tensors = {name: value.detach().float() for name, value in theirs.state_dict().items()}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    spec = model_spec({"model_type": family, **CONFIGS[family]})
    weights = load_weights(tmp_path, spec, torch.float32, torch.float32, torch.device("cpu"))
    ids = np.random.default_rng(0).integers(1, 256, 100)
    with torch.no_grad():
        want = theirs(torch.from_numpy(ids)[None], use_cache=False).logits[0].float()
    assert float(want.std()) > 0.05
    got = engine_logits(spec, weights, ids, (70, 1, 1, 28))
    tolerance = 2e-4 * float(want.abs().max())
    assert float((got - want).abs().max()) <= tolerance


def test_missing_and_misshapen_tensors_are_named(tmp_path):
    spec = model_spec({"model_type": "qwen3", **CONFIGS["qwen3"], "num_hidden_layers": 1})
    embedding = {"model.embed_tokens.weight": torch.zeros(256, 64)}
    write_safetensors(tmp_path / "a.safetensors", embedding)
    arguments = (tmp_path, spec, torch.float32, torch.float32, torch.device("cpu"))
    with pytest.raises(UnusableInputError, match=r"input_layernorm\.weight: is missing"):
        load_weights(*arguments)
    write_safetensors(tmp_path / "a.safetensors", {"model.embed_tokens.weight": torch.zeros(255, 64)})
    with pytest.raises(UnusableInputError, match=r"embedding.*found \(255, 64\), wanted \(256, 64\)"):
        load_weights(*arguments)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "header does not fit"),
        (b"\xff" * 8 + b"{}", "header does not fit"),
        ((3).to_bytes(8, "little") + b"{x}", "not JSON"),
        ((2).to_bytes(8, "little") + b"[]", "no object"),
    ],
)
def test_files_that_are_no_safetensors_are_refused(tmp_path, data, words):
    (tmp_path / "a.safetensors").write_bytes(data)
    with pytest.raises(UnusableInputError, match=words):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 1 << 40]},
        {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": "x", "data_offsets": [0, 16]},
        {"dtype": "I8", "shape": [16], "data_offsets": [0, 16]},
    ],
)
def test_header_entries_are_checked_against_the_data(tmp_path, entry):
    head = json.dumps({"x": entry}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(16))
    with pytest.raises(UnusableInputError, match="x:"):
        SafetensorsFolder(tmp_path).get("x")
