"""Attention backends: the block sizes that their kernels take.

`smallest` is the least kernel block; `preferred` is what the engine picks when nobody asked for a block. Both are
tokens, read in the backends of vLLM 0.33 (`get_supported_kernel_block_sizes`, `get_preferred_block_size`).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtune.tokenization.errors import UnusableInputError

DEFAULT_BLOCK = 16


@dataclass(frozen=True)
class AttentionBackend:
    name: str
    smallest: int
    preferred: int


def _backend(name: str, smallest: int, preferred: int | None = None) -> AttentionBackend:
    wanted = DEFAULT_BLOCK if DEFAULT_BLOCK % smallest == 0 else smallest
    return AttentionBackend(name, smallest, preferred or wanted)


BACKENDS = {
    backend.name: backend
    for backend in (
        _backend("FLASH_ATTN", 16),
        _backend("FLASHINFER", 16),
        _backend("TRITON_ATTN", 16),
        _backend("FLEX_ATTENTION", 16),
        _backend("ROCM_ATTN", 16),
        _backend("ROCM_AITER_FA", 16),
        _backend("ROCM_AITER_UNIFIED_ATTN", 16, preferred=64),
        _backend("XPU_FLASH_ATTN", 64),
        _backend("CPU_ATTN", 32),
        _backend("FLASH_ATTN_MLA", 16),
        _backend("TRITON_MLA", 16),
        _backend("ROCM_AITER_MLA", 1),
        _backend("FLASHINFER_MLA", 32),
        _backend("TOKENSPEED_MLA", 32),
        _backend("FLASHMLA", 64),
        _backend("CUTLASS_MLA", 128),
        _backend("FLASHMLA_SPARSE", 64),
        _backend("FLASHINFER_MLA_SPARSE", 32),
        _backend("FLASH_ATTN_MLA_SPARSE", 64),
        _backend("ROCM_AITER_MLA_SPARSE", 1),
    )
}
"""By name; `XPU_FLASH_ATTN` is FLASH_ATTN on Intel GPUs, whose kernels take other blocks."""


def find_backend(name: str | None) -> AttentionBackend:
    """The backend of that name (any case); None is one with 16-token kernel blocks, as most have.

    Raises:
        UnusableInputError: a backend whose kernel blocks are not known.
    """
    if name is None:
        return AttentionBackend("", DEFAULT_BLOCK, DEFAULT_BLOCK)
    backend = BACKENDS.get(name.upper())
    if backend is None:
        raise UnusableInputError(
            "the kernel blocks of this attention backend are not known",
            field="--attention-backend",
            found=name,
            wanted=f"one of {', '.join(BACKENDS)}",
            way_out="leave it out for kernel blocks of 16 tokens",
        )
    return backend
