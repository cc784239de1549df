"""From a model config to its layers: one function for each family, found by the config's `model_type`.

A family whose rule is not known is refused by name: a guessed block is worse than none.
"""

from __future__ import annotations

from collections.abc import Callable

from kvtune.analyzers.sizing.families import attention_only, gated_delta_net, kimi_delta, mamba2, other_states
from kvtune.analyzers.sizing.layers import ModelLayers
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.tokenization.errors import UnusableInputError

Family = Callable[[ModelConfig], ModelLayers]

_PLAIN = (
    "cohere cohere2 ernie4_5 ernie4_5_moe exaone exaone4 gemma glm glm4 glm4_moe granite granitemoe "
    "hunyuan_v1_dense hunyuan_v1_moe internlm2 internlm3 llama minimax_m2 mistral mistral3 mixtral nemotron "
    "olmo olmo2 olmo3 olmoe phi3 phimoe qwen2 qwen2_5_vl qwen2_moe qwen2_vl qwen3 qwen3_moe qwen3_vl qwen3_vl_moe "
    "seed_oss smollm3 stablelm starcoder2"
)

FAMILIES: dict[str, Family] = {
    "qwen3_next": gated_delta_net.qwen3_next,
    **dict.fromkeys(("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), gated_delta_net.qwen3_5),
    **dict.fromkeys(("qwen4_exp", "qwen4_exp_text"), gated_delta_net.qwen4_exp),
    "nemotron_h": mamba2.nemotron_h,
    "granitemoehybrid": mamba2.granite_hybrid,
    "bamba": mamba2.bamba,
    "falcon_h1": mamba2.falcon_h1,
    "zamba2": mamba2.zamba2,
    "jamba": other_states.jamba,
    **dict.fromkeys(("lfm2", "lfm2_moe"), other_states.lfm2),
    **dict.fromkeys(("minimax_text_01", "minimax_m1"), other_states.minimax_text),
    **dict.fromkeys(("kimi_linear", "kimi_k3"), kimi_delta.kimi_linear),
    "bailing_hybrid": kimi_delta.bailing_hybrid,
    "solar_open2": kimi_delta.solar_open2,
    **dict.fromkeys(("glm5_next", "glm5_next_text"), kimi_delta.glm5_next),
    "gpt_oss": attention_only.gpt_oss,
    **dict.fromkeys(("gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text"), attention_only.gemma),
    **dict.fromkeys(("gemma4", "gemma4_text"), attention_only.gemma4),
    **dict.fromkeys(("llama4", "llama4_text"), attention_only.llama4),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2"), attention_only.latent),
    **dict.fromkeys(_PLAIN.split(), attention_only.plain),
}
"""By `model_type`, of the whole file or of its text part."""


def model_layers(config: ModelConfig) -> ModelLayers:
    """Raises UnusableInputError for a family whose rule is not known, or whose config lacks what the rule needs."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        nested = config.text.get("model_type")
        family = FAMILIES.get(nested) if isinstance(nested, str) else None
    if family is None:
        name = f"{config.model_type} ({config.architecture})" if config.architecture else config.model_type
        raise UnusableInputError(
            "how this model family's layers become cache groups is not known",
            where=config.where,
            field="model_type",
            found=name,
            wanted="a family that kvtune knows (state shapes, layer order)",
            way_out="give the sizes with --groups, or a start-up log with --startup-log",
        )
    return family(config)
