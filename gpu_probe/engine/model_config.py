"""`config.json` → `ModelSpec`: which operator each layer has, and how wide.

Knows the field names of the families in `FAMILIES`; a family or layer type that the engine cannot run is
refused by name. Field names and their defaults are those of the transformers library's config classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvtune.gpu_probe.engine.config_fields import Config, ConfigFields
from kvtune.gpu_probe.engine.spec import (
    Block,
    GatedDeltaNet,
    Mamba2,
    Mlp,
    ModelSpec,
    Moe,
    Operator,
    ShortConv,
)
from kvtune.tokenization.errors import UnusableInputError


def model_spec(config: Config, where: str = "config.json") -> ModelSpec:
    """The decoder that a model's `config.json` describes (its `text_config` where it is nested).

    Raises:
        UnusableInputError: the family or one of its layer types is not built in, or a size is missing.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = {**config, **text}
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise UnusableInputError(
            "the bundled engine has no such model family",
            where=where,
            field="model_type",
            found=repr(family)[:60],
            wanted=", ".join(sorted(FAMILIES)),
            way_out="validate on a server with --serve or --endpoint",
        )
    return FAMILIES[family](ConfigFields(config, where), family)


def _pairs(layers: Iterator[tuple[Operator, Operator]], post_norm: bool = False) -> Iterator[Block]:
    """Layers of a mixer and a feed-forward block each."""
    for layer, (mixer, feed_forward) in enumerate(layers):
        yield Block(f"layers.{layer}.mixer", layer, mixer, post_norm)
        yield Block(f"layers.{layer}.feed_forward", layer, feed_forward, post_norm)


def _layer_types(fields: ConfigFields, known: tuple[str, ...], default: list[str] | None = None) -> list[str]:
    """One type per layer, each of them known to the family."""
    count = fields.size("num_hidden_layers")
    types = fields.names("layer_types") or default
    if types is None or len(types) != count:
        raise fields.refuse("layer_types", len(types or []), f"{count} entries")
    for name in types:
        if name not in known:
            raise fields.lacks(f"the layer type {name!r}"[:80], "layer_types")
    return types


def _qwen3_next(fields: ConfigFields, family: str) -> ModelSpec:
    """Qwen3-Next and Qwen3.5: gated delta nets, every n-th layer full attention with an output gate."""
    interval = fields.size("full_attention_interval", 4)
    count = fields.size("num_hidden_layers")
    types = _layer_types(
        fields,
        ("linear_attention", "full_attention"),
        ["linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(count)],
    )
    attention = fields.attention(0.25, qk_norm=True, output_gate=fields.flag("attn_output_gate", True))
    delta = GatedDeltaNet(
        fields.size("linear_num_key_heads", 16),
        fields.size("linear_num_value_heads", 32),
        fields.size("linear_key_head_dim", 128),
        fields.size("linear_value_head_dim", 128),
        fields.size("linear_conv_kernel_dim", 4),
    )
    if delta.num_value_heads % delta.num_key_heads:
        raise fields.refuse(
            "linear_num_key_heads", delta.num_key_heads, f"a divisor of {delta.num_value_heads}"
        )
    dense = Mlp(
        fields.size("intermediate_size", 4 * fields.size("hidden_size")), fields.activation("hidden_act")
    )
    sparse = _sparse(fields) if fields.config.get("num_experts") else None
    only_dense = fields.indices("mlp_only_layers")
    every = fields.size("decoder_sparse_step", 1)

    def layers() -> Iterator[tuple[Operator, Operator]]:
        for layer, name in enumerate(types):
            use_sparse = sparse is not None and layer not in only_dense and (layer + 1) % every == 0
            yield (
                (attention if name == "full_attention" else delta),
                (sparse or dense) if use_sparse else dense,
            )

    return fields.spec(family, _pairs(layers()), zero_centred_norm=True)


def _sparse(fields: ConfigFields, **changes: Any) -> Moe:
    """Qwen's mixture: softmax over all experts, the best k renormalised, a gated shared expert."""
    values: dict[str, Any] = {
        "num_experts": fields.size("num_experts"),
        "top_k": fields.size("num_experts_per_tok", 8),
        "intermediate": fields.size("moe_intermediate_size", 512),
        "shared_intermediate": fields.size("shared_expert_intermediate_size", 512),
        "shared_gate": True,
        "normalize": fields.flag("norm_topk_prob", True),
        "activation": fields.activation("hidden_act"),
    }
    return Moe(**{**values, **changes})


def _mamba2(fields: ConfigFields, prefix: str = "mamba_") -> Mamba2:
    """Bamba's and Granite's Mamba-2 sizes."""
    inner = fields.size("mamba_expand", 2) * fields.size("hidden_size")
    heads = fields.size(f"{prefix}n_heads", 128)
    head_dim = fields.config.get(f"{prefix}d_head")
    head_dim = inner // heads if head_dim in (None, "auto") else fields.size(f"{prefix}d_head")
    groups = fields.size(f"{prefix}n_groups", 1)
    if fields.flag("mamba_proj_bias"):
        raise fields.lacks("biases in Mamba projections", "mamba_proj_bias")
    if heads % groups:
        raise fields.refuse(f"{prefix}n_groups", groups, f"a divisor of {heads}")
    return Mamba2(
        heads, head_dim, fields.size(f"{prefix}d_state", 256), groups, fields.size(f"{prefix}d_conv", 4)
    )


def _granite(fields: ConfigFields, family: str) -> ModelSpec:
    """Granite 4 hybrids: Mamba-2 or attention, then experts and a shared feed-forward block side by side."""
    count = fields.size("num_hidden_layers")
    types = _layer_types(
        fields, ("mamba", "linear_attention", "attention", "full_attention"), ["mamba"] * count
    )
    rotary = {} if fields.config.get("position_embedding_type", "nope") == "rope" else {"rotary_dim": 0}
    attention = fields.attention(scale=fields.number("attention_multiplier", 1.0), **rotary)
    mamba = _mamba2(fields)
    shared = fields.size("shared_intermediate_size", 1024)
    feed_forward: Operator = Mlp(shared, fields.activation("hidden_act"))
    if fields.config.get("num_local_experts"):
        feed_forward = Moe(
            fields.size("num_local_experts"),
            fields.size("num_experts_per_tok", 6),
            fields.size("intermediate_size"),
            shared,
            router="topk_then_softmax",
            activation=fields.activation("hidden_act"),
        )
    mixers = (
        attention if name.endswith("attention") and name != "linear_attention" else mamba for name in types
    )
    return fields.spec(
        family,
        _pairs((mixer, feed_forward) for mixer in mixers),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        residual_scale=fields.number("residual_multiplier", 1.0),
        logits_scale=1.0 / fields.number("logits_scaling", 1.0),
        tied_head=fields.flag("tie_word_embeddings", True),
    )


def _bamba(fields: ConfigFields, family: str) -> ModelSpec:
    """Bamba: Mamba-2 with attention at named layers, half of each head rotated."""
    at = fields.indices("attn_layer_indices")
    attention, mamba = fields.attention(0.5), _mamba2(fields)
    mlp = Mlp(fields.size("intermediate_size", 14336), fields.activation("hidden_act"))
    mixers = (attention if layer in at else mamba for layer in range(fields.size("num_hidden_layers")))
    norm_eps = fields.number("rms_norm_eps", 1e-5)
    return fields.spec(family, _pairs((mixer, mlp) for mixer in mixers), norm_eps=norm_eps)


def _nemotron_h(fields: ConfigFields, family: str) -> ModelSpec:
    """Nemotron-H: a single operator per layer, by a pattern of letters (M, *, -, E)."""
    pattern = fields.config.get("hybrid_override_pattern")
    if not isinstance(pattern, str):
        names = fields.names("layers_block_type") or []
        letters = {
            "mamba": "M",
            "linear_attention": "M",
            "attention": "*",
            "full_attention": "*",
            "mlp": "-",
            "moe": "E",
        }
        pattern = "".join(letters.get(name, "?") for name in names)
    heads = fields.size("mamba_num_heads", 128)
    hidden = fields.size("hidden_size")
    act = fields.activation("mlp_hidden_act", default="relu2")
    operators: dict[str, Callable[[], Operator]] = {
        "M": lambda: Mamba2(
            heads,
            fields.size("mamba_head_dim", 64),
            fields.size("ssm_state_size", 128),
            fields.size("n_groups", 8),
            fields.size("conv_kernel", 4),
        ),
        "*": lambda: fields.attention(rotary_dim=0),
        "-": lambda: Mlp(fields.size("intermediate_size", 4 * hidden), act, gated=False),
        "E": lambda: Moe(
            fields.size("n_routed_experts", 8),
            fields.size("num_experts_per_tok", 2),
            fields.size("moe_intermediate_size", 7688),
            fields.size("moe_shared_expert_intermediate_size", 7688),
            router="sigmoid",
            normalize=fields.flag("norm_topk_prob", True),
            routed_scale=fields.number("routed_scaling_factor", 1.0),
            activation=act,
            gated=False,
        ),
    }
    for letter in pattern:
        if letter not in operators:
            raise fields.lacks(f"the layer type {letter!r}", "hybrid_override_pattern")
    if len(pattern) != fields.size("num_hidden_layers", len(pattern)) or not pattern:
        raise fields.refuse("hybrid_override_pattern", f"{len(pattern)} letters", "one letter per layer")
    blocks = (
        Block(f"layers.{layer}.mixer", layer, operators[letter]()) for layer, letter in enumerate(pattern)
    )
    return fields.spec(family, blocks, norm_eps=fields.number("layer_norm_epsilon", 1e-5))


def _lfm2(fields: ConfigFields, family: str) -> ModelSpec:
    """LFM2: short convolutions with attention at some layers; the MoE kind after the first dense layers."""
    count = fields.size("num_hidden_layers")
    at = fields.indices("full_attn_idxs")
    default = ["full_attention" if layer in at or not at else "conv" for layer in range(count)]
    types = _layer_types(fields, ("conv", "full_attention"), default)
    attention = fields.attention(rope_theta=1000000.0, qk_norm=True)
    conv = ShortConv(fields.size("hidden_size"), fields.size("conv_L_cache", 3))
    if fields.flag("conv_bias"):
        raise fields.lacks("a bias in short convolutions", "conv_bias")
    dense = Mlp(_lfm2_intermediate(fields))
    sparse: Operator = dense
    if fields.config.get("num_experts"):
        sparse = Moe(
            fields.size("num_experts"),
            fields.size("num_experts_per_tok", 4),
            fields.size("moe_intermediate_size"),
            router="sigmoid",
            normalize=fields.flag("norm_topk_prob", True),
            routed_scale=fields.number("routed_scaling_factor", 1.0),
        )
    num_dense = int(fields.number("num_dense_layers", 0)) if fields.config.get("num_experts") else count
    layers = (
        (attention if name == "full_attention" else conv, dense if layer < num_dense else sparse)
        for layer, name in enumerate(types)
    )
    return fields.spec(
        family,
        _pairs(layers),
        norm_eps=fields.number("norm_eps", 1e-5),
        tied_head=fields.flag("tie_word_embeddings", True),
    )


def _lfm2_intermediate(fields: ConfigFields) -> int:
    """LFM2 states the width before it is cut to two thirds and rounded up (`block_auto_adjust_ff_dim`)."""
    size = fields.size("intermediate_size", fields.size("block_ff_dim", 12288))
    if fields.config.get("num_experts") or not fields.flag("block_auto_adjust_ff_dim", True):
        return size
    size = int(fields.number("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
    multiple = fields.size("block_multiple_of", 256)
    return -(-size // multiple) * multiple


def _decoder(fields: ConfigFields, family: str) -> ModelSpec:
    """Llama-like decoders, with sliding windows where the config says so."""
    count = fields.size("num_hidden_layers")
    types = _layer_types(
        fields, ("full_attention", "sliding_attention"), _windowed_layers(fields, family, count)
    )
    window = fields.size("sliding_window") if "sliding_attention" in types else None
    changes: dict[str, Any] = {"qk_norm": family in ("qwen3", "qwen3_moe", "gemma3_text", "gemma3")}
    whole: dict[str, Any] = {}
    if family.startswith("qwen2"):
        changes["bias"] = True
    if family.startswith("gemma3"):
        changes["scale"] = fields.number("query_pre_attn_scalar", 256) ** -0.5
        whole = {
            "zero_centred_norm": True,
            "embedding_scale": fields.size("hidden_size") ** 0.5,
            "tied_head": True,
        }
    full = fields.attention(rope_theta=1000000.0 if family.startswith("gemma3") else 10000.0, **changes)
    windowed = replace(full, window=window)
    if family.startswith("gemma3"):
        windowed = replace(windowed, rope_theta=fields.number("rope_local_base_freq", 10000.0))
    act = fields.activation(
        "hidden_activation",
        "hidden_act",
        default="gelu_pytorch_tanh" if family.startswith("gemma3") else "silu",
    )
    feed_forward: Operator = Mlp(fields.size("intermediate_size", 4 * fields.size("hidden_size")), act)
    if family == "qwen3_moe":
        feed_forward = _sparse(fields, shared_intermediate=0, shared_gate=False)
    mixers = (windowed if name == "sliding_attention" else full for name in types)
    blocks = _pairs(((mixer, feed_forward) for mixer in mixers), post_norm=family.startswith("gemma3"))
    return fields.spec(family, blocks, **whole)


def _windowed_layers(fields: ConfigFields, family: str, count: int) -> list[str]:
    """Layer types of configs without `layer_types`, by each family's older fields."""
    if family.startswith("gemma3"):
        pattern = fields.size("sliding_window_pattern", 6)
        return [
            "full_attention" if (layer + 1) % pattern == 0 else "sliding_attention" for layer in range(count)
        ]
    windowed = fields.config.get("sliding_window") is not None
    if family.startswith("qwen"):
        first = int(fields.number("max_window_layers", 0))
        windowed = windowed and fields.flag("use_sliding_window")
        return [
            "sliding_attention" if windowed and layer >= first else "full_attention" for layer in range(count)
        ]
    return ["sliding_attention" if windowed and family == "mistral" else "full_attention"] * count


FAMILIES: dict[str, Callable[[ConfigFields, str], ModelSpec]] = {
    "bamba": _bamba,
    "gemma3": _decoder,
    "gemma3_text": _decoder,
    "granitemoehybrid": _granite,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "llama": _decoder,
    "mistral": _decoder,
    "nemotron_h": _nemotron_h,
    "qwen2": _decoder,
    "qwen3": _decoder,
    "qwen3_5": _qwen3_next,
    "qwen3_5_moe": _qwen3_next,
    "qwen3_5_moe_text": _qwen3_next,
    "qwen3_5_text": _qwen3_next,
    "qwen3_moe": _decoder,
    "qwen3_next": _qwen3_next,
}
