"""Where an engine refuses to start, or stops, with given settings: one refusal per check it makes.

Knows settings and resolved block sizes; nothing about requests. Messages are kvtune's own; `type` is the engine's
exception class and `rule` names the check, the same word in every release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvtune.analyzers.layout import EngineConfig, KVCacheGroup
from kvtune.analyzers.profiles import ReleaseProfile
from kvtune.tokenization.errors import UnusableInputError

Stage = Literal["config", "setup", "run"]

RETENTION_KINDS = frozenset({"sliding_window", "mamba"})
"""Kinds of group whose kept states the retention interval thins out."""


class EngineRefusal(UnusableInputError):  # noqa: N818 - what happened, as the engine would say it
    """The engine would not start, or would stop, with these settings.

    Attributes:
        type: the engine's exception class. rule: what it checks, one word that does not change between releases.
        subject: the refused value. stage: when it happens; `setup` also covers the engine's own configuration.
    """

    def __init__(
        self, type_: str, rule: str, message: str, *, subject: int | None = None, stage: Stage = "setup"
    ) -> None:
        self.type = type_
        self.rule = rule
        self.subject = subject
        self.stage = stage
        super().__init__(message)


@dataclass(frozen=True)
class BlockSizes:
    """The scheduler block and the hash unit, in tokens, and the effective block of each expanded group."""

    scheduler_block_size: int
    hash_block_size: int
    group_block_sizes: tuple[int, ...]


def check_config(config: EngineConfig, profile: ReleaseProfile) -> None:
    """Settings that are refused before any size is known.

    Raises:
        EngineRefusal: where the engine would not start.
    """
    groups = config.expanded()
    drafter = config.drafter
    if drafter is not None and drafter.disable_eagle_block_drop and not profile.can_disable_block_drop:
        raise EngineRefusal(
            "ValidationError",
            "no_such_option",
            "this release cannot switch the block drop off",
            stage="config",
        )
    for group in groups:
        if group.export_alignment is not None and not profile.exports_states:
            raise EngineRefusal(
                "ValidationError",
                "no_such_option",
                "this release exports no states inside a chunk",
                stage="config",
            )
        if (
            group.mode is not None
            and group.mode not in profile.mamba_modes
            and not profile.caching_needs_align
        ):
            raise EngineRefusal(
                "ValidationError",
                "no_such_mamba_mode",
                f"this release has no Mamba cache mode {group.mode}",
                stage="config",
            )
    if not config.enable_prefix_caching or not profile.align_block_within_budget:
        return
    if any(group.kind == "mamba" and group.mode in (None, "align") for group in groups):
        block = min(group.block_size for group in groups)
        budget = config.max_num_batched_tokens
        threshold = config.long_prefill_token_threshold
        if block > budget or 0 < threshold < block:
            raise EngineRefusal(
                "AssertionError",
                "block_exceeds_budget",
                f"the block ({block}) must not exceed the step budget ({threshold or budget})",
                subject=block,
            )


def check_start(
    config: EngineConfig,
    profile: ReleaseProfile,
    sizes: BlockSizes,
    *,
    draft_window: int = 0,
    partial: bool = False,
    dropping: frozenset[int] = frozenset(),
) -> None:
    """What the cache manager checks when it is built.

    Args:
        draft_window: prompt tokens that a drafter with flagged groups reads past a chunk.
        partial: whether hits may end inside a block. dropping: expanded groups whose hits give up a unit.

    Raises:
        EngineRefusal: where the engine would not start.
    """
    groups = config.expanded()
    scheduler_block, hash_block = sizes.scheduler_block_size, sizes.hash_block_size
    caching = config.enable_prefix_caching
    if caching and scheduler_block < draft_window:
        raise EngineRefusal(
            "ValueError",
            "draft_window_exceeds_block",
            f"a drafter of {draft_window} modules needs a scheduler block of at least {draft_window} tokens, "
            f"not {scheduler_block}",
        )
    if caching and profile.caching_needs_align:
        for group in groups:
            if group.kind == "mamba" and group.mode not in (None, "align"):
                raise EngineRefusal(
                    "AssertionError",
                    "mamba_mode_not_align",
                    f"prefix caching needs Mamba mode align, not {group.mode}",
                )
    check_retention(config.retention_interval, scheduler_block, groups)
    if not caching:
        return
    _check_chunked_local(groups, sizes, hash_block if partial else scheduler_block, dropping)
    if len(groups) == 1:
        if hash_block != sizes.group_block_sizes[0]:
            raise EngineRefusal(
                "AssertionError",
                "single_group_hash_differs",
                f"the hash unit ({hash_block}) is not the block of the only group",
            )
        return
    for group, size in zip(groups, sizes.group_block_sizes, strict=True):
        if (group.cacheable or not profile.uncacheable_groups) and size % hash_block:
            raise EngineRefusal(
                "AssertionError",
                "block_not_multiple_of_hash_unit",
                f"the block of {group.kind} ({size}) is no multiple of the hash unit ({hash_block})",
                subject=hash_block,
            )
        if config.decode_context_parallel_size > 1 and group.kind not in ("full", "mamba"):
            raise EngineRefusal(
                "AssertionError",
                "kind_not_under_dcp",
                f"decode context parallelism does not support {group.kind}",
            )
    if profile.hybrid_needs_two_specs and len(set(groups)) == 1:
        raise EngineRefusal(
            "AssertionError", "hybrid_needs_two_specs", "all groups have one and the same spec"
        )
    if partial and not profile.coarse_group_disables_partial_hits:
        for group in groups:
            if group.kind not in profile.fine_lookup_kinds and hash_block % group.block_size:
                raise EngineRefusal(
                    "AssertionError",
                    "kind_without_fine_lookup",
                    f"the first lookup fails: {group.kind} {group.block_size} cannot be looked up by {hash_block}",
                    stage="run",
                )


def _check_chunked_local(
    groups: tuple[KVCacheGroup, ...], sizes: BlockSizes, grid: int, dropping: frozenset[int]
) -> None:
    """What the first lookup of a chunked-local group asserts. (`single_type_kv_cache_manager:
    ChunkedLocalAttentionManager.find_longest_cache_hit`)"""
    for place, (group, size) in enumerate(zip(groups, sizes.group_block_sizes, strict=True)):
        if group.kind != "chunked_local":
            continue
        if place in dropping:
            raise EngineRefusal(
                "AssertionError",
                "chunked_local_with_drop",
                "the first lookup fails: chunked local attention knows no block drop for drafters",
                stage="run",
            )
        if size != grid and len(groups) > 1:
            raise EngineRefusal(
                "AssertionError",
                "chunked_local_block",
                f"the first lookup fails: chunked local blocks of {size} need hits on multiples of {size}, "
                f"not of {grid}",
                stage="run",
            )


def check_retention(interval: int | None, scheduler_block: int, groups: tuple[KVCacheGroup, ...]) -> None:
    """Raises EngineRefusal for an interval that the engine refuses. None (dense) never is.
    (`kv_cache_coordinator: _validate_prefix_cache_retention_interval`)"""
    if interval is None:
        return
    if not any(group.kind in RETENTION_KINDS for group in groups):
        if interval:
            raise EngineRefusal(
                "ValueError",
                "retention_without_sparse_group",
                f"retention interval {interval} has no effect without a sliding-window or Mamba group; use 0",
                subject=interval,
            )
        return
    if interval < 0 or interval % scheduler_block:
        raise EngineRefusal(
            "ValueError",
            "retention_not_multiple",
            f"retention interval {interval} must be 0 or a multiple of the scheduler block ({scheduler_block})",
            subject=interval,
        )
