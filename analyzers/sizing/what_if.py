"""The same model under other flags: the block that each of them gives.

Halving the bytes of the KV cache doubles the block, a smaller state halves it; that is worth knowing before a flag
is set for another reason. Knows blocks; what a block is worth on real prompts is a matter of replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kvtune.analyzers.sizing.backends import BACKENDS
from kvtune.analyzers.sizing.blocks import kv_cache_dtype
from kvtune.analyzers.sizing.model_sizes import ModelSizes, size_layers
from kvtune.analyzers.sizing.releases import parse_release
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.tokenization.errors import UnusableInputError

KV_DTYPES = ("bfloat16", "fp8", "nvfp4")
STATE_DTYPES = ("float32", "bfloat16")
RANKS = (1, 2, 4, 8)
DRAFTS = (0, 1, 3, 7)
LATENT_BACKENDS = ("FLASH_ATTN_MLA", "FLASHINFER_MLA", "FLASHMLA", "CUTLASS_MLA")


@dataclass(frozen=True)
class WhatIf:
    """One other way to serve.

    Attributes:
        what: the group of flags it belongs to. flag: what would be typed.
        attention_block_size: tokens; None where it cannot be served (`error`: why).
        current: this is how it is served today.
    """

    what: str
    flag: str
    attention_block_size: int | None
    mamba_page_bytes: int | None
    padding_pct: float | None
    current: bool
    error: str | None


def what_ifs(sizes: ModelSizes) -> tuple[WhatIf, ...]:
    """Other KV and state dtypes, ranks, draft tokens and kernels, each by itself, and the block each gives."""
    variants = _variants(sizes) if sizes.model.state_layers else _latent_kernels(sizes.flags, sizes)
    return tuple(
        _try(sizes, what, flag, replace(sizes.flags, **changes), current)
        for what, flag, changes, current in variants
    )


def _variants(sizes: ModelSizes) -> Iterator[tuple[str, str, dict[str, Any], bool]]:
    flags, model = sizes.flags, sizes.model
    kv = kv_cache_dtype(model, flags)
    kv = "bfloat16" if kv in ("auto", "half", "float16") else kv
    for dtype in dict.fromkeys((*KV_DTYPES, kv)):
        yield (
            "KV cache dtype",
            f"--kv-cache-dtype {dtype}",
            {"kv_cache_dtype": dtype},
            dtype.startswith(kv[:3]),
        )
    if any(layer.state.kind not in ("short_conv", "linear_attention") for layer in model.state_layers):
        state = flags.mamba_ssm_cache_dtype
        state = (model.ssm_dtype or model.dtype) if state == "auto" else state
        for dtype in dict.fromkeys((*STATE_DTYPES, state)):
            changes = {"mamba_ssm_cache_dtype": dtype}
            yield "state dtype", f"--mamba-ssm-cache-dtype {dtype}", changes, dtype == state
    for ranks in RANKS:
        current = ranks == flags.tensor_parallel_size
        yield "tensor parallel", f"--tensor-parallel-size {ranks}", {"tensor_parallel_size": ranks}, current
    for tokens in sorted({*DRAFTS, flags.num_speculative_tokens}):
        current = tokens == flags.num_speculative_tokens
        yield "draft tokens", f"num_speculative_tokens {tokens}", {"num_speculative_tokens": tokens}, current
    yield from _kernels(flags, sizes)


def _latent_kernels(flags: ServeFlags, sizes: ModelSizes) -> Iterator[tuple[str, str, dict[str, Any], bool]]:
    """Latent attention alone has the block of its backend."""
    if sizes.model.is_latent:
        for name in LATENT_BACKENDS:
            current = (flags.attention_backend or LATENT_BACKENDS[0]).upper() == name
            meaning = f"{BACKENDS[name].smallest}-token kernels"
            yield "attention backend", f"{name} ({meaning})", {"attention_backend": name}, current


def _kernels(flags: ServeFlags, sizes: ModelSizes) -> Iterator[tuple[str, str, dict[str, Any], bool]]:
    yield from _latent_kernels(flags, sizes)
    if not sizes.model.is_latent:
        for name, meaning in (("FLASH_ATTN", "16-token kernels"), ("XPU_FLASH_ATTN", "64-token kernels")):
            current = (flags.attention_backend or "FLASH_ATTN").upper() == name
            yield "attention backend", f"{name} ({meaning})", {"attention_backend": name}, current
    export = sizes.model.state_export
    if export is not None and export.rounds_block and parse_release(flags.version) >= export.since:
        for backend in ("triton", export.backend):
            current = (flags.gdn_prefill_backend or "triton") == backend
            yield (
                "prefill kernel",
                f"--gdn-prefill-backend {backend}",
                {"gdn_prefill_backend": backend},
                current,
            )


def _try(sizes: ModelSizes, what: str, flag: str, flags: ServeFlags, current: bool) -> WhatIf:
    try:
        block = size_layers(sizes.model, flags).block
    except UnusableInputError as error:
        return WhatIf(what, flag, None, None, None, current, str(error))
    return WhatIf(
        what, flag, block.attention_block_size, block.mamba_page_bytes, block.padding_pct, current, None
    )
