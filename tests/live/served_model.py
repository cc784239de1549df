"""A tiny random Qwen3-Next for a real server: its config, and the command that serves it.

Four layers give three Mamba groups and one of full attention. `--load-format dummy` draws weights when it loads.
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

VOCABULARY = 248_320
"""As large as the vocabulary behind `tests/data/live`, so that the server takes those ids."""

BLOCK = 256
MAX_MODEL_LEN = 32_768

_CONFIG = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "dtype": "bfloat16",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "max_position_embeddings": MAX_MODEL_LEN,
}


def write_model(folder: Path, tokenizer_from: Path) -> Path:
    """A model folder with the vocabulary and chat template of another one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer_from / name, folder / name)
    (folder / "config.json").write_text(json.dumps(_CONFIG, indent=2))
    return folder


def serve_command(environment: Path, model: Path, *more: str) -> str:
    """How a user would serve it, as one line for `--serve`.

    The block is stated although the engine would align to the same one: on CPU, vLLM 0.32 checks its configuration a
    second time after the caches are made and puts the block that ends prefill chunks back to 128, unless it was given.
    """
    words = [
        "VLLM_CPU_KVCACHE_SPACE=1",
        "HF_HUB_OFFLINE=1",
        "VLLM_NO_USAGE_STATS=1",
        str(environment / "bin" / "vllm"),
        "serve",
        str(model),
        *("--load-format", "dummy"),
        "--enforce-eager",
        "--enable-prefix-caching",
        *("--mamba-cache-mode", "align"),
        *("--mamba-ssm-cache-dtype", "float32"),
        *("--block-size", str(BLOCK)),
        *("--max-model-len", str(MAX_MODEL_LEN)),
        *more,
    ]
    return shlex.join(words)
