"""Bytes of the dtypes that the KV cache and the recurrent state can have.

Knows names and byte counts (`vllm/config/cache.py` and the attention backends, 0.19 to 0.33). A packed format
whose layout belongs to one backend is refused by name rather than guessed.
"""

from __future__ import annotations

from fractions import Fraction

from kvtune.tokenization.errors import UnusableInputError

ELEMENT_BYTES = {
    "float32": 4,
    "float": 4,
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}
"""Dtypes with a fixed size per element."""

_PER_HEAD_SCALE_BYTES = 4
_PACKED = ("turboquant", "octave", "ultraquant", "int4_per_token_head", "nvfp4_ds_mla", "fp8_ds_mla")
_STATE_DTYPES = ("float32", "float", "bfloat16", "float16", "half")


def kv_bytes_per_head(kv_cache_dtype: str, head_size: int, head_size_v: int, model_dtype: str) -> int:
    """Bytes of one token's K and V in one head of one layer.

    `head_size_v` 0 is a latent (MLA) row, which has no V.

    Raises:
        UnusableInputError: an unknown dtype, or one whose packing is the backend's own.
    """
    name = model_dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    width = head_size + head_size_v
    if name in ELEMENT_BYTES:
        return width * ELEMENT_BYTES[name]
    if name in ("int8_per_token_head", "fp8_per_token_head"):
        parts = 2 if head_size_v else 1
        return width + parts * _PER_HEAD_SCALE_BYTES
    if name == "nvfp4":
        # Half a byte an element, and one scale byte for 16 elements.
        packed = Fraction(width, 2) + Fraction(width, 16)
        if packed.denominator == 1:
            return int(packed)
        raise UnusableInputError(
            "head size cannot be packed",
            field="--kv-cache-dtype",
            found=f"{name} with a head of {head_size}",
            wanted="a head size that is a multiple of 16",
        )
    raise _unknown_kv_dtype(name)


def state_bytes(dtype: str, model_dtype: str, option: str) -> int:
    """Bytes of one element of a recurrent or convolution state."""
    name = model_dtype if dtype == "auto" else dtype
    if name not in _STATE_DTYPES:
        raise UnusableInputError(
            "unknown state dtype", field=option, found=name, wanted="auto, float32, bfloat16 or float16"
        )
    return ELEMENT_BYTES[name]


def _unknown_kv_dtype(name: str) -> UnusableInputError:
    if name.startswith(_PACKED):
        return UnusableInputError(
            "the bytes per token of this packed KV format are known to its attention backend only",
            field="--kv-cache-dtype",
            found=name,
            way_out="read the block from a start-up log with --startup-log, or give --groups",
        )
    known = ", ".join(sorted({*ELEMENT_BYTES, "auto", "nvfp4", "int8_per_token_head", "fp8_per_token_head"}))
    return UnusableInputError(
        "unknown KV cache dtype", field="--kv-cache-dtype", found=name, wanted=f"one of {known}"
    )
