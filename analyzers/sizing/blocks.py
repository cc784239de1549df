"""The block of a hybrid model: the smallest one whose attention page holds a whole recurrent state.

    attention page of one layer:  block x bytes per token
    state page of one layer:      fixed; padded up to the attention page, so that one pool serves both

Knows sizes of one layer on one rank; which layers share a group is `grouping`'s business. Rules that differ
between releases are asked from `SizingRules`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvtune.analyzers.layout import MambaMode
from kvtune.analyzers.sizing.backends import AttentionBackend, find_backend
from kvtune.analyzers.sizing.layers import ModelLayers, StateDtypes
from kvtune.analyzers.sizing.releases import SizingRules, parse_release
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.tokenization.errors import UnusableInputError

LARGEST_BLOCK = 1 << 30
"""No engine has larger ones; what a config says beyond that is a mistake."""


@dataclass(frozen=True)
class BlockChoice:
    """Sizes of one layer on one rank.

    Attributes:
        attention_block_size: tokens. mamba_block_size: None for a model without states.
        attention_bytes_per_token: of the main attention layer. mamba_page_bytes: of the largest state, unpadded.
        padding_pct: by how much the state page is padded; None without states.
        alignment: the block was rounded up to a multiple of this.
        mode: the Mamba cache mode. prefix_caching: whether it is on.
    """

    attention_block_size: int
    mamba_block_size: int | None
    attention_bytes_per_token: int | None
    mamba_page_bytes: int | None
    padding_pct: float | None
    alignment: int
    mode: MambaMode | None
    prefix_caching: bool


def choose_block(model: ModelLayers, flags: ServeFlags, rules: SizingRules) -> BlockChoice:
    """Resolve block sizes as the engine's workers do.

    Raises:
        UnusableInputError: an impossible tensor parallel size, an unknown dtype, backend or mode.
    """
    backend = find_backend(flags.attention_backend)
    check_tensor_parallel(model, flags.tensor_parallel_size)
    caching = prefix_caching(model, flags, rules)
    base = flags.block_size or _preferred(model, backend, rules)
    attention = model.main_attention
    per_token = (
        attention.bytes_per_row(
            kv_cache_dtype(model, flags), weights_dtype(model, flags), flags.tensor_parallel_size
        )
        if attention is not None
        else None
    )
    if not model.state_layers:
        return BlockChoice(base, None, per_token, None, None, 1, None, caching)
    mode = mamba_mode(model, flags, rules, caching=caching)
    page = max(state_pages(model, flags))
    if per_token is None:
        block = flags.max_model_len or model.max_model_len or base
        return BlockChoice(block, block, None, page, None, 1, mode, caching)
    alignment = _alignment(model, flags, rules, backend, base, mode)
    if mode == "all":
        chunk = math.lcm(flags.mamba_block_size or model.chunk_size, alignment)
        needed = chunk * _ceil(_ceil(page, per_token), chunk)
    else:
        needed = alignment * _ceil(page, alignment * per_token)
        multiple = math.lcm(
            backend.smallest if rules.every_backend else 1,
            *(model.kernel_blocks if rules.side_caches else ()),
        )
        needed = multiple * _ceil(needed, multiple)
    block = max(base, needed)
    if block > LARGEST_BLOCK:
        raise UnusableInputError("the model's sizes are out of range", found=f"a block of {block} tokens")
    padding = round(100 * (block * per_token - page) / page, 2)
    mamba_block = block if mode == "align" else needed if mode == "all" else _longest(model, flags)
    return BlockChoice(block, mamba_block, per_token, page, padding, alignment, mode, caching)


def state_pages(model: ModelLayers, flags: ServeFlags) -> list[int]:
    """Unpadded state bytes of each state layer on one rank."""
    dtypes = StateDtypes.of(
        flags.mamba_cache_dtype, flags.mamba_ssm_cache_dtype, weights_dtype(model, flags), model.ssm_dtype
    )
    return [
        layer.page_bytes(dtypes, flags.tensor_parallel_size, flags.num_speculative_tokens)
        for layer in model.state_layers
    ]


def prefix_caching(model: ModelLayers, flags: ServeFlags, rules: SizingRules) -> bool:
    """Whether prefix caching is on: by flag, else by default; hybrid models are off before 0.28."""
    if flags.enable_prefix_caching is not None:
        return flags.enable_prefix_caching
    return rules.hybrid_caching or not model.state_layers


def mamba_mode(model: ModelLayers, flags: ServeFlags, rules: SizingRules, *, caching: bool) -> MambaMode:
    """The cache mode in force. A mode that the release does not have is refused; one that it ignores is ignored."""
    asked = flags.mamba_cache_mode if rules.mode_option else None
    if asked == "all" and not rules.mode_all:
        raise UnusableInputError(
            "Mamba mode all is gone in this release",
            field="--mamba-cache-mode",
            found="all",
            wanted="align (0.32 removed all)",
        )
    if not caching:
        return "none"
    if asked in (None, "none"):
        return "all" if rules.default_all and model.mode_all else "align"
    return "align" if asked == "all" and not model.mode_all else asked


def kv_cache_dtype(model: ModelLayers, flags: ServeFlags) -> str:
    """The KV dtype in force: by flag, else what the checkpoint asks for, else `auto` (the weights')."""
    if flags.kv_cache_dtype != "auto":
        return flags.kv_cache_dtype
    return model.kv_cache_dtype or "auto"


def weights_dtype(model: ModelLayers, flags: ServeFlags) -> str:
    return model.dtype if flags.dtype == "auto" else flags.dtype


def state_export_alignment(model: ModelLayers, flags: ServeFlags) -> int | None:
    """Alignment of state exports from inside a chunk, where the backend is known to export; else None."""
    export, release = model.state_export, parse_release(flags.version)
    if flags.state_export is not None:
        return flags.state_export
    if export is None or release < export.since:
        return None
    return export.alignment if export.backend in ("", flags.gdn_prefill_backend) else None


def check_tensor_parallel(model: ModelLayers, size: int) -> None:
    """Raises UnusableInputError where the ranks cannot share the attention heads."""
    heads = model.num_attention_heads
    if heads % size:
        raise UnusableInputError(
            "the ranks cannot share the attention heads evenly",
            field="--tensor-parallel-size",
            found=str(size),
            wanted=f"a divisor of {heads} (num_attention_heads)",
        )


def _alignment(
    model: ModelLayers,
    flags: ServeFlags,
    rules: SizingRules,
    backend: AttentionBackend,
    base: int,
    mode: MambaMode,
) -> int:
    if not rules.asks_backend:
        if model.is_latent:
            return 128 if backend.name == "CUTLASS_MLA" else 64
        return 16
    alignment = max(backend.smallest, base)
    if model.is_latent:
        alignment = max(alignment, rules.latent_block)
    if mode == "align" and rules.export_rounds_block and model.export_rounds_block:
        alignment = math.lcm(alignment, state_export_alignment(model, flags) or 1)
    return alignment


def _preferred(model: ModelLayers, backend: AttentionBackend, rules: SizingRules) -> int:
    """The block that is picked when nobody asks for one: with an indexer, one that its kernel takes as well."""
    if rules.side_caches and model.kernel_blocks:
        return math.lcm(backend.preferred, *model.kernel_blocks)
    return backend.preferred


def _longest(model: ModelLayers, flags: ServeFlags) -> int:
    longest = flags.max_model_len or model.max_model_len
    if longest is None:
        raise UnusableInputError(
            "without prefix caching a state block is as long as the longest sequence, which is not known",
            field="--max-model-len",
            found="missing",
            wanted="the server's max_model_len",
        )
    return longest


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
