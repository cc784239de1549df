"""Kimi delta attention beside latent or dense attention: Kimi Linear, Kimi K3, Ling 3, GLM-5.3-Flash, Solar Open 2.

The matrix state is float32 unless the user says otherwise. Sources: `vllm/model_executor/models/bailing_moe_v3.py`,
`vllm/models/kimi_k3`, `vllm/models/glm5next`; Solar Open 2 from its own config alone (newer than 0.33).
"""

from __future__ import annotations

from kvtune.analyzers.sizing.families.common import (
    attention_layer,
    base_layers,
    latent_attention_layer,
    required_kinds,
)
from kvtune.analyzers.sizing.layers import (
    AttentionLayer,
    Layer,
    ModelLayers,
    RingLayer,
    StateExport,
    StateLayer,
)
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.states import KimiDeltaState

FLASH_KDA = StateExport("flashkda", 16, since=(0, 29))
PAGED_INDEX_BLOCK = 32
"""Smallest page, in stored rows, of the indexer's kernel (64 on consumer Blackwell)."""


def kimi_linear(config: ModelConfig) -> ModelLayers:
    """Layer lists count from 1."""
    section = config.section("linear_attn_config")
    full = section.integers("full_attn_layers")
    if full is None:
        raise config.refusal(
            "linear_attn_config.full_attn_layers", "missing", "the places of the attention layers"
        )
    places = {place - 1 for place in full}
    layers = _alternate(_section_state(section), latent_attention_layer(config), places, config.num_layers)
    return base_layers(config, "Kimi Linear", layers, ssm_dtype="float32", state_export=FLASH_KDA)


def bailing_hybrid(config: ModelConfig) -> ModelLayers:
    """The last layer of every group has latent attention."""
    group = config.integer("layer_group_size")
    state = KimiDeltaState(
        config.integer("num_attention_heads"),
        config.integer("head_dim"),
        config.integer("short_conv_kernel_size"),
    )
    places = {index for index in range(config.num_layers) if (index + 1) % group == 0}
    layers = _alternate(state, latent_attention_layer(config), places, config.num_layers)
    return base_layers(config, "Ling 3", layers, ssm_dtype="float32")


def solar_open2(config: ModelConfig) -> ModelLayers:
    """Dense attention where `gqa_layers` says, counted from 0."""
    places = config.integers("gqa_layers")
    if places is None:
        raise config.refusal("gqa_layers", "missing", "the places of the attention layers")
    state = _section_state(config.section("linear_attn_config"))
    layers = _alternate(state, attention_layer(config), set(places), config.num_layers)
    return base_layers(config, "Solar Open 2", layers, ssm_dtype="float32")


def glm5_next(config: ModelConfig) -> ModelLayers:
    """Latent attention with a pooled indexer: its rows cover `index_kpool` tokens, and a ring holds the open pool."""
    pool = config.integer("index_kpool", default=16)
    head_size = config.integer("index_head_dim")
    state = StateLayer(_section_state(config.section("linear_attn_config")))
    attention = latent_attention_layer(config)
    # One byte an element and four for the scale; the ring keeps the raw key and its gate.
    pooled = AttentionLayer("full", 1, head_size, 0, tokens_per_state=pool, row_bytes=head_size + 4)
    ring = RingLayer(pool, power_of_two=True, row_bytes=4 * head_size)
    layers: list[Layer] = []
    for kind in required_kinds(config, "layer_types"):
        layers += [state] if kind == "linear_attention" else [pooled, ring, attention]
    return base_layers(
        config,
        "GLM-5.3-Flash",
        layers,
        draft=config.integer("num_nextn_predict_layers", default=1, minimum=0),
        ssm_dtype="float32",
        kernel_blocks=(pool * PAGED_INDEX_BLOCK,),
        packed=True,
    )


def _section_state(section: ModelConfig) -> KimiDeltaState:
    return KimiDeltaState(
        section.integer("num_heads"), section.integer("head_dim"), section.integer("short_conv_kernel_size")
    )


def _alternate(state: KimiDeltaState, attention: AttentionLayer, places: set[int], count: int) -> list[Layer]:
    recurrent = StateLayer(state)
    return [attention if index in places else recurrent for index in range(count)]
