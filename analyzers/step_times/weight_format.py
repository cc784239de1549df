"""How a checkpoint stores its weights: bytes of one, and the arithmetic that its kernels use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from kvtune.analyzers.sizing.dtypes import ELEMENT_BYTES
from kvtune.analyzers.sizing.model_config import ModelConfig

Arithmetic = Literal["bf16", "fp8", "fp4"]

_FIRST_CAPABILITY: dict[Arithmetic, int] = {"bf16": 0, "fp8": 89, "fp4": 100}
"""The first compute capability whose tensor cores have it; before, weights are expanded to bf16."""
_SPEED: dict[Arithmetic, float] = {"bf16": 1.0, "fp8": 2.0, "fp4": 4.0}
"""Dense throughput over that of bf16, by the makers' data sheets."""


@dataclass(frozen=True)
class WeightFormat:
    """One format.

    Attributes:
        bytes: of a weight, scales included.
        arithmetic: what tensor cores multiply.
    """

    bytes: float
    arithmetic: Arithmetic = "bf16"

    def speed(self, capability: int) -> float:
        """Throughput over that of bf16, on a card of this compute capability."""
        return _SPEED[self.arithmetic] if capability >= _FIRST_CAPABILITY[self.arithmetic] else 1.0


FP8 = WeightFormat(1.0, "fp8")
NVFP4 = WeightFormat(0.5625, "fp4")
"""Half a byte, and one scale byte for 16 weights."""
MXFP4 = WeightFormat(0.53125)
"""Half a byte, and one scale byte for 32 weights; multiplied in bf16."""
INT4 = WeightFormat(0.515625)
"""Half a byte, and a 2-byte scale for 128 weights."""
INT8 = WeightFormat(1.0)


class WeightFormats(NamedTuple):
    """Of a checkpoint.

    Attributes:
        plain: of weights that are not quantized: embeddings, the output projection.
        dense: of weights that every token passes. experts: of the others.
    """

    plain: WeightFormat
    dense: WeightFormat
    experts: WeightFormat


def weight_formats(config: ModelConfig) -> WeightFormats:
    """From `quantization_config`; MXFP4 checkpoints quantize their experts only.

    Raises:
        UnusableInputError: a quantization method that is not known.
    """
    plain = WeightFormat(float(ELEMENT_BYTES.get(config.dtype, 2)))
    section = config.get("quantization_config")
    if not isinstance(section, dict):
        return WeightFormats(plain, plain, plain)
    method = str(section.get("quant_method", "")).lower()
    quantized = _by_method(method, section)
    if quantized is None:
        raise config.refusal(
            "quantization_config", repr(method[:40]), "fp8, mxfp4, modelopt, awq, gptq or compressed-tensors"
        )
    return WeightFormats(plain, plain if quantized is MXFP4 else quantized, quantized)


def _by_method(method: str, section: dict[str, object]) -> WeightFormat | None:
    if method in ("fp8", "fbgemm_fp8"):
        return FP8
    if method in ("mxfp4", "gpt_oss_mxfp4"):
        return MXFP4
    if method in ("awq", "gptq", "auto-round", "auto_awq", "awq_marlin", "gptq_marlin"):
        return INT4 if section.get("bits", section.get("w_bit", 4)) == 4 else INT8
    if method == "bitsandbytes":
        return INT4 if section.get("load_in_4bit") else INT8
    if method.startswith("modelopt"):
        return NVFP4 if "FP4" in f"{method} {section.get('quant_algo', '')}".upper() else FP8
    return _compressed(section) if method == "compressed-tensors" else None


def _compressed(section: dict[str, object]) -> WeightFormat | None:
    """By the group with the fewest bits: the one that holds most weights."""
    groups = section.get("config_groups")
    formats = [
        found
        for group in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(group, dict) and (found := _group_format(group)) is not None
    ]
    return min(formats, key=lambda found: found.bytes, default=None)


def _group_format(group: dict[str, object]) -> WeightFormat | None:
    weights = group.get("weights")
    if not isinstance(weights, dict):
        return None
    bits, floating = weights.get("num_bits"), weights.get("type") == "float"
    if bits == 8:
        return FP8 if floating and group.get("input_activations") else INT8
    if bits != 4:
        return None
    if not floating:
        return INT4
    return MXFP4 if weights.get("group_size") == 32 else NVFP4
