"""What several families share: attention of the usual fields, layer lists, and the fields of every result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvtune.analyzers.sizing.layers import AttentionLayer, Layer, ModelLayers
from kvtune.analyzers.sizing.model_config import ModelConfig

FULL_ATTENTION_NAMES = frozenset({"full_attention", "attention", "deepseek_sparse_attention"})
STATE_NAMES = frozenset({"linear_attention", "mamba", "conv", "recurrent"})


def attention_layer(config: ModelConfig) -> AttentionLayer:
    """Dense attention with the usual field names."""
    head_size = config.head_size
    return AttentionLayer("full", config.num_kv_heads, head_size, head_size)


def latent_attention_layer(config: ModelConfig) -> AttentionLayer:
    """Multi-head latent attention: one row of the compressed KV and the rotated key part."""
    row = config.integer("kv_lora_rank") + config.integer("qk_rope_head_dim", default=0, minimum=0)
    return AttentionLayer("full", 1, row, 0)


def base_layers(
    config: ModelConfig, family: str, layers: Sequence[Layer], *, draft: int = 0, **fields: Any
) -> ModelLayers:
    """A `ModelLayers` with what every family reads the same way; `draft` layers repeat the main attention."""
    main = next(
        (layer for layer in layers if isinstance(layer, AttentionLayer) and layer.row_bytes is None), None
    )
    return ModelLayers(
        family=family,
        layers=tuple(layers),
        dtype=config.dtype,
        num_attention_heads=config.integer("num_attention_heads"),
        draft_layers=(main,) * draft if main is not None else (),
        max_model_len=config.optional_integer("max_position_embeddings", "model_max_length", minimum=1),
        kv_cache_dtype=checkpoint_kv_dtype(config),
        **fields,
    )


def interval_kinds(config: ModelConfig, interval: str, default: int) -> list[str]:
    """Every `interval`-th layer is full attention, unless `layer_types` lists them."""
    listed = listed_kinds(config, "layer_types")
    if listed is not None:
        return listed
    step = config.integer(interval, default=default)
    return ["linear_attention" if (i + 1) % step else "full_attention" for i in range(config.num_layers)]


def listed_kinds(config: ModelConfig, field: str) -> list[str] | None:
    """A list with one name for each layer, as long as the model."""
    kinds = config.strings(field)
    if kinds is not None and len(kinds) != config.num_layers:
        raise config.refusal(field, f"{len(kinds)} entries", f"one for each of {config.num_layers} layers")
    return kinds


def required_kinds(config: ModelConfig, field: str) -> list[str]:
    kinds = listed_kinds(config, field)
    if kinds is None:
        raise config.refusal(field, "missing", "one name for each layer")
    return kinds


def checkpoint_kv_dtype(config: ModelConfig) -> str | None:
    """The KV dtype that a quantised checkpoint asks for when `--kv-cache-dtype` is `auto`.

    Read for ModelOpt checkpoints only, as the engine does. (`vllm/utils/torch_utils.py:
    get_kv_cache_quant_algo_string`)
    """
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict) or not str(quantization.get("quant_method", "")).startswith(
        "modelopt"
    ):
        return None
    inner = quantization.get("quantization", quantization)
    for fields, name in (
        (inner, "kv_cache_scheme"),
        (quantization, "kv_cache_scheme"),
        (inner, "kv_cache_quant_algo"),
        (quantization, "kv_cache_quant_algo"),
    ):
        value = fields.get(name) if isinstance(fields, dict) else None
        if isinstance(value, dict):
            bits, kind = value.get("num_bits"), value.get("type")
            if kind == "float" and bits == 4:
                return "nvfp4"
            return "fp8" if kind == "float" and bits == 8 and value.get("dynamic") is False else None
        if isinstance(value, str):
            return {"fp8": "fp8", "nvfp4": "nvfp4"}.get(value.lower())
    return None
