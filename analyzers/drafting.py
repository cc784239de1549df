"""What a drafter changes for prefix caching: lookahead in every hash, a dropped block, reserved slots.

An EAGLE-like drafter writes its own KV at a position from the next token too. A cached position is therefore only
right for a request whose next token is the same: releases either drop the last unit of a hit, or hash the next
tokens along with a block.
"""

from __future__ import annotations

from kvtune.analyzers.layout import Drafter, EngineConfig
from kvtune.analyzers.profiles import ReleaseProfile

EAGLE_LIKE = frozenset({"eagle", "eagle3", "mtp", "multi_module_mtp", "dflash", "dspark"})
"""Draft methods that read the target model's hidden states (`vllm/config/speculative.py: use_eagle`)."""

NEEDS_NEXT_TOKEN = frozenset({"eagle", "eagle3", "mtp", "multi_module_mtp"})
"""Of these, the ones whose draft KV at a position depends on the next token: hits change in every release."""


def lookahead_or_drop(config: EngineConfig, profile: ReleaseProfile) -> tuple[int, bool]:
    """Hash lookahead tokens, and whether a block is dropped from hits."""
    drafter = config.drafter
    if drafter is None or drafter.disable_eagle_block_drop:
        return 0, False
    if drafter.method not in (EAGLE_LIKE if profile.drops_for_every_eagle_like else NEEDS_NEXT_TOKEN):
        return 0, False
    if (
        profile.hashes_look_ahead
        and config.enable_prefix_caching
        and not config.kv_connector
        and not drafter.disable_lookahead_block_hashes
    ):
        return prefill_lookahead(drafter), False
    return 0, True


def prefill_lookahead(drafter: Drafter | None) -> int:
    """Prompt tokens that the drafter reads past a chunk. (`vllm/config/vllm.py: num_prefill_lookahead_tokens`)"""
    if drafter is None or drafter.method not in EAGLE_LIKE:
        return 0
    return drafter.num_speculative_tokens if drafter.method == "multi_module_mtp" else 1


def slot_lookahead(drafter: Drafter | None) -> int:
    """KV slots past the scheduled tokens. (`vllm/config/vllm.py: num_lookahead_tokens`)"""
    if drafter is None:
        return 0
    if drafter.method == "dflash":
        return drafter.num_speculative_tokens + 1
    return drafter.num_speculative_tokens if drafter.method in EAGLE_LIKE | {"draft_model"} else 0


def draft_rows(drafter: Drafter | None, profile: ReleaseProfile) -> int:
    """Rows of a step's input that the draft pass adds for each request. (`vllm/config/speculative.py:
    max_num_new_slots_for_drafting`)"""
    if drafter is None:
        return 0
    drafts = drafter.num_speculative_tokens
    if drafter.method in ("dflash", "dspark"):
        if profile.dflash_rows == "none":
            return 0
        return drafts if drafter.method == "dflash" and profile.dflash_rows == "drafts" else drafts - 1
    own = 1 if drafter.method == "draft_model" else 0
    return own + (drafts - 1 if drafter.parallel_drafting else 0)


def step_budget(config: EngineConfig, profile: ReleaseProfile) -> tuple[int, int]:
    """Tokens that a step may schedule, and how many more each request in it takes of them. Up to 0.27 the draft rows of
    as many requests as a step may hold are taken off every step instead. (`sched/scheduler: schedule`,
    `vllm/config/vllm.py: _set_max_num_scheduled_tokens`)"""
    rows = draft_rows(config.drafter, profile)
    if profile.draft_rows_by_request:
        return config.max_num_batched_tokens, rows
    return config.max_num_batched_tokens - rows * config.max_num_seqs, 0
