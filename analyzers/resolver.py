"""What an engine makes of its groups and flags: block sizes, the hit grid, what a drafter changes, and refusals.

    groups, unit, DCP, caching, connector --> scheduler block S (LCM), hash unit h, hit grid a (h or S)
    drafter ------------------------------> lookahead tokens in every hash, or a block dropped from every hit

Knows rules and numbers; nothing about where the groups came from, requests or reports. Rules that differ between
releases are asked from the profile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvtune.analyzers.drafting import lookahead_or_drop, prefill_lookahead, slot_lookahead, step_budget
from kvtune.analyzers.layout import EngineConfig, KVCacheGroup
from kvtune.analyzers.profiles import ReleaseProfile
from kvtune.analyzers.refusal import BlockSizes, EngineRefusal, check_config, check_start


@dataclass(frozen=True)
class ResolvedSizes:
    """Everything that is fixed before the first request. Sizes in tokens.

    Attributes:
        cache_hit_alignment: the grid that hits land on. partial_hits: whether that is finer than the blocks allow.
        min_block_size: smallest block of a cacheable group of one rank; the grid of Mamba chunk ends.
        group_block_sizes: effective block (with context parallelism) of each expanded group.
        hash_lookahead_tokens: tokens after a position that its hash covers.
        eagle_block_drop: a hit gives up its last unit. dropping_groups: expanded groups that do so.
        flagged_groups: expanded groups that hold draft layers (all, if the drop needs one and none is named).
        slot_lookahead_tokens: slots reserved past the scheduled tokens. prefill_lookahead_tokens: prompt tokens
            that the drafter reads past a chunk.
        step_budget: that a step may schedule. draft_rows: that each scheduled request takes of it besides its own.
        speculative_blocks: extra state blocks of each Mamba request.
        align_split: whether prefill chunks end where states are kept.
        junction_checkpoint: chunks may end at a junction inside a block.
        warnings: settings that are accepted and do not do what they say.
    """

    scheduler_block_size: int
    hash_block_size: int
    cache_hit_alignment: int
    partial_hits: bool
    min_block_size: int
    group_block_sizes: tuple[int, ...]
    hash_lookahead_tokens: int
    eagle_block_drop: bool
    flagged_groups: frozenset[int]
    dropping_groups: frozenset[int]
    slot_lookahead_tokens: int
    prefill_lookahead_tokens: int
    step_budget: int
    draft_rows: int
    speculative_blocks: int
    align_split: bool
    junction_checkpoint: bool
    warnings: tuple[str, ...]

    @property
    def minimum_reusable_prefix(self) -> int:
        """The shortest prompt whose resend hits: one hit unit and the token that is always recomputed."""
        return self.cache_hit_alignment + 1


def resolve_sizes(config: EngineConfig, profile: ReleaseProfile) -> ResolvedSizes:
    """Resolve every size as the engine does when it starts.

    Raises:
        EngineRefusal: where the engine would not start.
    """
    groups = config.expanded()
    check_config(config, profile)
    sizes = resolve_block_sizes(config, profile)
    lookahead, drop = lookahead_or_drop(config, profile)
    flagged = frozenset(index for index, group in enumerate(groups) if group.draft)
    if drop and not flagged:
        flagged = frozenset(range(len(groups)))
    draft_window = prefill_lookahead(config.drafter)
    budget, rows = step_budget(config, profile)
    if budget <= 0:
        raise EngineRefusal(
            "ValueError",
            "no_budget_beside_drafts",
            f"the drafts of {config.max_num_seqs} requests leave nothing of the step budget of "
            f"{config.max_num_batched_tokens} tokens",
            subject=config.max_num_batched_tokens,
            stage="config",
        )
    alignment, partial, warnings = resolve_hit_alignment(config, profile, sizes)
    check_start(
        config,
        profile,
        sizes,
        draft_window=draft_window if flagged else 0,
        partial=partial,
        dropping=flagged if drop else frozenset(),
    )
    warnings.extend(_ignored_unit(config, groups, sizes))
    c = min((group.block_size for group in groups if group.cacheable), default=groups[0].block_size)
    align_split = config.enable_prefix_caching and any(
        group.kind == "mamba" and group.mode in (None, "align") for group in groups
    )
    if align_split and c > budget:
        warnings.append(
            f"the step budget ({budget}) is below the block ({c}): "
            "a prompt needs several steps to reach its first resumable position"
        )
    return ResolvedSizes(
        scheduler_block_size=sizes.scheduler_block_size,
        hash_block_size=sizes.hash_block_size,
        cache_hit_alignment=alignment,
        partial_hits=partial,
        min_block_size=c,
        group_block_sizes=sizes.group_block_sizes,
        hash_lookahead_tokens=lookahead,
        eagle_block_drop=drop,
        flagged_groups=flagged,
        dropping_groups=flagged if drop else frozenset(),
        slot_lookahead_tokens=slot_lookahead(config.drafter),
        prefill_lookahead_tokens=draft_window,
        step_budget=budget,
        draft_rows=rows,
        speculative_blocks=config.drafter.num_speculative_tokens if config.drafter else 0,
        align_split=align_split,
        junction_checkpoint=bool(
            config.mamba_shared_prefix_checkpoint
            and profile.junction_checkpoint_option
            and flagged
            and partial
            and draft_window <= 1
            and align_split
        ),
        warnings=tuple(warnings),
    )


def resolve_block_sizes(config: EngineConfig, profile: ReleaseProfile) -> BlockSizes:
    """Scheduler block and hash unit. (`kv_cache_utils: resolve_kv_cache_block_sizes`)

    Raises:
        EngineRefusal: for a unit that the release refuses.
    """
    groups = config.expanded()
    dcp = config.decode_context_parallel_size
    unit = config.match_unit
    if unit is not None and unit < 1:
        raise EngineRefusal(
            "ValidationError",
            "unit_not_positive",
            f"match unit {unit} is below 1",
            subject=unit,
            stage="config",
        )
    effective = tuple(effective_block_size(group, dcp) for group in groups)
    hashing = config.enable_prefix_caching or config.kv_connector
    if len(groups) == 1:
        block = (
            effective[0] if profile.single_replicated_group == "escapes_dcp" else groups[0].block_size * dcp
        )
        if profile.single_replicated_group == "multiplied":
            effective = (block,)
        if unit not in (None, block) and hashing and profile.single_group_refuses_other_unit:
            raise EngineRefusal(
                "ValueError",
                "unit_on_single_group",
                f"match unit {unit} is refused: with a single group hits land on its block of {block} tokens; "
                f"leave the unit unset or set it to {block}",
                subject=unit,
            )
        return BlockSizes(block, block, effective)
    scheduler_block = math.lcm(*effective)
    if not hashing or _backs_off(groups, profile):
        return BlockSizes(scheduler_block, scheduler_block, effective)
    constrained = effective
    if profile.uncacheable_groups:
        constrained = (
            tuple(size for size, group in zip(effective, groups, strict=True) if group.cacheable) or effective
        )
    hash_block = unit if unit is not None else math.gcd(*constrained)
    odd = [size for size in constrained if size % hash_block]
    if odd:
        raise EngineRefusal(
            "ValueError",
            "unit_does_not_divide",
            f"match unit {hash_block} does not divide the block of {_named(odd, groups, effective)}",
            subject=hash_block,
        )
    if profile.checks_state_compression:
        grid = hash_block if _fine_mamba(groups, hash_block, dcp, profile) else scheduler_block
        odd = sorted(
            {group.tokens_per_state for group in groups if group.cacheable and grid % group.tokens_per_state}
        )
        if odd:
            raise EngineRefusal(
                "ValueError",
                "compression_misaligned",
                f"match unit {hash_block} puts hits on multiples of {grid} tokens, which is no multiple of the "
                f"{odd[0]} tokens that one compressed state holds",
                subject=hash_block,
            )
    return BlockSizes(scheduler_block, hash_block, effective)


def resolve_hit_alignment(
    config: EngineConfig, profile: ReleaseProfile, sizes: BlockSizes
) -> tuple[int, bool, list[str]]:
    """The grid that hits land on, whether partial hits are on, and warnings.
    (`kv_cache_utils: partial_hash_hits_enabled, resolve_cache_hit_alignment_tokens`)"""
    groups = config.expanded()
    hash_block = sizes.hash_block_size
    if not config.enable_prefix_caching or len(groups) == 1:
        return sizes.scheduler_block_size, False, []
    if not _fine_mamba(groups, hash_block, config.decode_context_parallel_size, profile):
        return sizes.scheduler_block_size, False, []
    coarse = [
        group
        for group, size in zip(groups, sizes.group_block_sizes, strict=True)
        if (group.cacheable or not profile.uncacheable_groups)
        and group.kind not in profile.fine_lookup_kinds
        and size != hash_block
    ]
    if coarse and profile.coarse_group_disables_partial_hits:
        kinds = ", ".join(sorted({f"{group.kind} {group.block_size}" for group in coarse}))
        return (
            sizes.scheduler_block_size,
            False,
            [
                f"hits inside a block are off for the whole model: {kinds} can only be looked up by whole blocks; "
                f"hits land on multiples of {sizes.scheduler_block_size}"
            ],
        )
    return hash_block, True, []


def effective_block_size(group: KVCacheGroup, dcp: int) -> int:
    """Tokens that one block spans across the ranks of decode context parallelism."""
    return group.block_size if group.kind == "mamba" else group.block_size * dcp


def _backs_off(groups: tuple[KVCacheGroup, ...], profile: ReleaseProfile) -> bool:
    mambas = [group for group in groups if group.kind == "mamba"]
    if profile.backoff_rule == "mode":
        return any(group.mode not in (None, "align") for group in mambas)
    smallest = min(group.block_size for group in groups)
    return any(group.block_size != smallest for group in mambas)


def _fine_mamba(groups: tuple[KVCacheGroup, ...], hash_block: int, dcp: int, profile: ReleaseProfile) -> bool:
    """Whether an aligned Mamba group has blocks that a hit may end inside."""
    if dcp > 1 and not profile.partial_hits_under_dcp:
        return False
    smallest = hash_block if dcp > 1 else hash_block + 1
    return any(
        group.kind == "mamba" and group.mode in (None, "align") and group.block_size >= smallest
        for group in groups
    )


def _ignored_unit(config: EngineConfig, groups: tuple[KVCacheGroup, ...], sizes: BlockSizes) -> list[str]:
    unit = config.match_unit
    if unit is None or unit == sizes.hash_block_size:
        return []
    if len(groups) == 1:
        return [f"match unit {unit} is ignored: with a single group hits land on its block"]
    if not config.enable_prefix_caching:
        return [f"match unit {unit} is ignored: prefix caching is off"]
    return [f"match unit {unit} is ignored: the Mamba groups do not cache in mode align"]


def _named(odd: list[int], groups: tuple[KVCacheGroup, ...], effective: tuple[int, ...]) -> str:
    names = {
        f"group {index} ({group.kind}, {size})"
        for index, (group, size) in enumerate(zip(groups, effective, strict=True))
        if size in odd
    }
    return ", ".join(sorted(names))
