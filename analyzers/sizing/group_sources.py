"""Groups for blocks that a running server reported: the sizes are facts, their kinds come from the model config.

Without a config the kinds of a hybrid model are taken in the order of the Qwen3-Next line, and that is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvtune.analyzers.layout import KVCacheGroup, MambaMode
from kvtune.analyzers.report import SizeSource
from kvtune.analyzers.sizing.model_sizes import ModelSizes, SizedGroup
from kvtune.analyzers.sizing.serve_flags import ServeFlags

SMALLEST_ALIGNED_BLOCK = 32
"""Smaller blocks beside a hybrid model's aligned ones are ring buffers."""

_GUESSED = (
    "block sizes say nothing about kinds: the last group of {block:,} is taken as full attention and those before it "
    "as Mamba, as in Qwen3-Next and Qwen3.5; --model-config or --groups says it for sure"
)


@dataclass(frozen=True)
class FoundGroups:
    """Groups one by one, what they were found in, and whether their kinds are more than a guess or unknown."""

    groups: tuple[SizedGroup, ...]
    source: SizeSource
    kinds_known: bool
    warnings: tuple[str, ...] = ()


def groups_for_blocks(
    blocks: Sequence[int], source: SizeSource, flags: ServeFlags, model: ModelSizes | None, *, hybrid: bool
) -> FoundGroups:
    """Groups for the effective blocks of all groups, in the engine's order."""
    if model is not None and len(model.groups) == len(blocks):
        groups = tuple(
            _resized(sized, block, flags) for sized, block in zip(model.groups, blocks, strict=True)
        )
        return FoundGroups(groups, source, True)
    warnings = []
    if model is not None:
        warnings.append(
            f"the server has {len(blocks)} groups, the model config gives {len(model.groups)}: "
            "a drafter or a flag is missing here"
        )
    if not hybrid:
        return FoundGroups(
            tuple(SizedGroup(KVCacheGroup("unspecified", block), None) for block in blocks),
            source,
            False,
            tuple(warnings),
        )
    found = _guess(blocks, flags)
    return FoundGroups(
        found,
        source,
        all(sized.group.kind != "unspecified" for sized in found),
        (*warnings, _GUESSED.format(block=_attention_block(blocks, flags))),
    )


def group_for_block(
    block: int, source: SizeSource, flags: ServeFlags, model: ModelSizes | None, *, hybrid: bool
) -> FoundGroups:
    """Groups for the one block that is known, that of full attention."""
    if model is not None:
        own = model.block.attention_block_size
        groups = tuple(
            _resized(sized, block, flags, scaled=False) if sized.group.block_size == own else sized
            for sized in model.groups
        )
        return FoundGroups(groups, source, True)
    if not hybrid:
        single = SizedGroup(KVCacheGroup("unspecified", block), None)
        warning = "one block size is all that is known: the number of groups and their kinds are not"
        return FoundGroups((single,), source, False, (warning,))
    state_block = block if _mode(flags) != "none" else flags.max_model_len or block
    groups = (
        SizedGroup(KVCacheGroup("mamba", state_block, mode=_mode(flags)), None),
        SizedGroup(KVCacheGroup("full", block), None),
    )
    warning = (
        "the number of groups is not known: one Mamba and one full attention group stand for all of them; "
        "--model-config or --groups says it for sure"
    )
    return FoundGroups(groups, source, True, (warning,))


def _resized(sized: SizedGroup, block: int, flags: ServeFlags, *, scaled: bool = True) -> SizedGroup:
    """The group with the block of one rank; reported blocks span all ranks of context parallelism."""
    ranks = flags.decode_context_parallel_size if scaled and sized.group.kind != "mamba" else 1
    size = block // ranks if block % ranks == 0 else block
    return replace(sized, group=replace(sized.group, block_size=size))


def _guess(blocks: Sequence[int], flags: ServeFlags) -> tuple[SizedGroup, ...]:
    ranks = flags.decode_context_parallel_size
    attention = _attention_block(blocks, flags)
    state = attention // ranks if attention % ranks == 0 else attention
    last = max(index for index, block in enumerate(blocks) if block == attention)
    groups = []
    for index, block in enumerate(blocks):
        if index == last:
            group = KVCacheGroup("full", state)
        elif block == flags.max_model_len != state:
            group = KVCacheGroup("mamba", block, mode="none")  # one state for the longest sequence
        elif block == state:
            group = KVCacheGroup("mamba", block, mode=_mode(flags))
        elif block < SMALLEST_ALIGNED_BLOCK and attention % block == 0:
            group = KVCacheGroup("ring", block, cacheable=False)
        else:
            group = KVCacheGroup("unspecified", block)
        groups.append(SizedGroup(group, None))
    return tuple(groups)


def _attention_block(blocks: Sequence[int], flags: ServeFlags) -> int:
    """The effective block of full attention: the commonest that is neither a ring's nor the longest sequence (states
    without caching); the largest where context parallelism multiplies it."""
    kept = [block for block in blocks if block >= SMALLEST_ALIGNED_BLOCK and block != flags.max_model_len]
    if flags.decode_context_parallel_size > 1:
        return max(kept or blocks)
    return Counter(kept or blocks).most_common(1)[0][0]


def _mode(flags: ServeFlags) -> MambaMode:
    if flags.enable_prefix_caching is False:
        return "none"
    return flags.mamba_cache_mode or "align"
