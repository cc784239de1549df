"""The rules in which vLLM releases differ, one field per rule; the defaults are those of 0.33.

Every field says what the newest release does, where that stands in its sources (`module: name`, below
`vllm/v1/core` unless a path is given) and, behind "before", what older releases did. `history` holds the values.
Rules that every release from 0.26 on shares are not here: they stand once in `kvtune.analyzers.bookkeeping`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvtune.analyzers.layout import Kind, MambaMode


@dataclass(frozen=True)
class ReleaseProfile:
    """One release's rules. `version` is for people to read; no rule is derived from it."""

    version: str

    # --- sizes -------------------------------------------------------------------------------------------------
    single_group_refuses_other_unit: bool = True
    """One group: a match unit other than its block size stops the engine. Before 0.32 it was ignored silently.
    (`kv_cache_utils: resolve_kv_cache_block_sizes`)"""

    single_replicated_group: Literal["escapes_dcp", "mismatch", "multiplied"] = "escapes_dcp"
    """One group that context parallelism does not shard keeps its own block size. In 0.30 only its hash unit was
    multiplied, so that a Mamba-only model failed to start; up to 0.28 both were. (the same function)"""

    backoff_rule: Literal["mode", "block_size"] = "mode"
    """What makes hashing fall back to the scheduler block: a Mamba group outside mode `align`. In 0.26: a Mamba
    block that differs from the cache block size, so uneven hybrids did not start. (the same function)"""

    uncacheable_groups: bool = True
    """Groups that are not prefix-cacheable do not constrain the unit. Since 0.29. (the same function)"""

    checks_state_compression: bool = True
    """The hit grid must be a multiple of every per-state compression. Since 0.30. (the same function)"""

    fine_lookup_kinds: frozenset[Kind] = frozenset({"full", "mamba"})
    """Kinds whose manager can look up between block boundaries. (`single_type_kv_cache_manager:
    supports_fine_grained_hash_lookup`)"""

    coarse_group_disables_partial_hits: bool = True
    """A cacheable group without fine lookup, and with a block other than the unit, turns partial hits off. In 0.26
    they stayed on and the first sliding-window lookup failed. (`kv_cache_utils: partial_hash_hits_enabled`)"""

    partial_hits_under_dcp: bool = True
    """Partial hits work with context parallelism. Since 0.30. (the same function)"""

    caching_needs_align: bool = True
    """Prefix caching with a Mamba group outside mode `align` stops the engine. Since 0.33.
    (`single_type_kv_cache_manager: MambaManager`)"""

    hybrid_needs_two_specs: bool = False
    """Several groups of one and the same spec stop the engine. Up to 0.28. (`kv_cache_coordinator:
    verify_and_split_kv_cache_groups`)"""

    align_block_within_budget: bool = False
    """The block of an `align` model may not exceed the step budget, nor the long-prefill threshold. In 0.26.
    (`vllm/config/vllm.py: validate_block_size`)"""

    mamba_modes: frozenset[MambaMode] = frozenset({"align", "none"})
    """Mamba cache modes that can be asked for; `all` up to 0.31. (`vllm/config/cache.py: MambaCacheMode`)"""

    default_retention_interval: int | None = 0
    """0 keeps the replay boundary and junctions only; None (dense) before 0.29. (the same)"""

    retention_option: str = "--prefix-cache-retention-interval"
    """How the retention interval is set: an option of the server since 0.29, an environment variable before.
    (`vllm/config/cache.py: CacheConfig`, up to 0.28 `vllm/envs.py`)"""

    # --- chunk ends --------------------------------------------------------------------------------------------
    boundaries_leave_last_token: bool = True
    """The last cacheable block and the prompt tail lie below the last token, so that a block-aligned prompt can be
    resumed. Since 0.32; before, they were taken of the whole prompt. (`sched/scheduler:
    _mamba_block_aligned_split`, `vllm/v1/kv_cache_interface.py: get_mamba_prefill_checkpoint_position`)"""

    dropped_tail_is_one_lower: bool = True
    """With the drafter's block drop the chunk stops at the prompt tail one unit lower, where the hit lands. Since
    0.30. (`sched/scheduler: _mamba_block_aligned_split`)"""

    aligns_until: Literal["prefill_end", "last_block"] = "prefill_end"
    """Chunk ends are floored to the block grid up to here; in 0.26 only below the last cacheable block.
    (the same function)"""

    realigns_past_last_block: bool = True
    """A chunk that starts inside a block stops at the next boundary even when that lies past the last cacheable
    block. Since 0.28. (the same function)"""

    splits_wide_blocks: bool = True
    """A block wider than the step budget advances in pieces. Since 0.28. (the same function)"""

    long_prefill_threshold_needs_company: bool = True
    """`long_prefill_token_threshold` applies only while another request runs or waits. Since 0.31.
    (`sched/scheduler: schedule`)"""

    tail_needs_partial_hits: bool = True
    """A chunk stops at the prompt tail only where partial hits work. In 0.26 wherever the unit is finer than the
    scheduler block, so that a step was spent on a boundary nothing can resume. (`sched/scheduler: Scheduler`)"""

    # --- which states and blocks get a key ---------------------------------------------------------------------
    mask_grid: Literal["hit_alignment", "scheduler_block"] = "hit_alignment"
    """The grid on which retention masks are drawn. The scheduler block up to 0.28.
    (`single_type_kv_cache_manager: cache_blocks`)"""

    drop_moves_replay_boundary: bool = True
    """With the block drop, retention keeps the blocks where the drop lands. Since 0.30.
    (`kv_cache_coordinator: replay_boundaries`)"""

    drop_keeps_block_below_junction: bool = True
    """A dropping group also keeps the block below a junction. Since 0.33. (`single_type_kv_cache_manager:
    cache_blocks`)"""

    full_tail_leaves_last_token: bool = True
    """Full attention keys the tail below the last token (of the whole prompt in a dropping group). Since 0.32;
    before, of the whole prompt. (`single_type_kv_cache_manager: FullAttentionManager`)"""

    mamba_tail_drop: Literal["engine", "group", "never"] = "engine"
    """Who lowers the keyed Mamba tail by the drop: the engine's drop; in 0.30 only the group's own; up to 0.28
    nobody did. (`single_type_kv_cache_manager: MambaManager`)"""

    mamba_tail_on_block_boundary: bool = True
    """A tail on a block boundary is keyed even where retention would not. Since 0.32. (the same)"""

    rekeyed_tail_defers_twins: bool = False
    """In 0.32 re-keying a block-aligned tail marked it as written in this step, so that same-step twins were
    admitted one step after the other. (the same)"""

    state_release_skips_gaps: bool = True
    """Releasing states that a request has moved past looks behind gaps in its table. Up to 0.28 it stopped at the
    first gap, so that a state behind it was held to the end. (the same)"""

    state_estimate: Literal["bounded", "export_adds_drafts", "flat"] = "bounded"
    """Blocks that a Mamba step is expected to take: at most a running state, a copy and an export, and scratch for
    drafts at first. In 0.31 an export counted the scratch again; up to 0.30 any need counted as the whole bound,
    so that small pools preempted earlier. (the same: `get_num_blocks_to_allocate`)"""

    drafts_travel_past_export: bool = True
    """Scratch blocks of drafts are reused in the step that exports a state. Since 0.32. (the same:
    `allocate_new_blocks`)"""

    registers_accepted_drafts: bool = True
    """With a drafter, blocks that accepted drafts filled are keyed when the output is handed back. Before 0.33 with
    the next chunk. (`sched/scheduler: update_from_output`)"""

    hashes_look_ahead: bool = True
    """With an EAGLE-like drafter the block hash covers the next tokens and nothing is dropped. Since 0.33.
    (`vllm/config/vllm.py: num_hash_lookahead_tokens`)"""

    drops_for_every_eagle_like: bool = False
    """Up to 0.32 dflash and dspark drop a block as well; 0.33 exempts them. (`vllm/config/speculative.py:
    use_eagle`, from 0.30 `use_eagle_block_drop`)"""

    draft_rows_by_request: bool = True
    """Rows that the draft pass adds are taken off the step budget for each scheduled request. Up to 0.27 for
    `max_num_seqs` requests in every step. (`sched/scheduler: schedule`, `vllm/config/vllm.py`)"""

    dflash_rows: Literal["none", "drafts", "drafts_less_one"] = "none"
    """Rows that DFlash adds for each request: none since 0.33, where it drafts in a pass of its own; all drafts from
    0.28; one fewer before. (`vllm/config/speculative.py: max_num_new_slots_for_drafting`)"""

    drop_reads_whole_prompt: bool = True
    """The drop's extra unit may reach past the last-token limit. Since 0.32. (`kv_cache_coordinator:
    find_longest_cache_hit`)"""

    trims_every_full_group: bool = True
    """Full-attention tables are cut to the agreed hit. Up to 0.28 only those of the first spec, so that a second
    one also adopted blocks past the hit. (the same)"""

    can_disable_block_drop: bool = True
    """`disable_eagle_block_drop` exists. Since 0.30. (`vllm/config/speculative.py: SpeculativeConfig`)"""

    # --- states exported from inside a chunk -------------------------------------------------------------------
    exports_states: bool = True
    """Backends may export a state from inside the chunk. Since 0.29. (`vllm/v1/kv_cache_interface.py:
    is_mamba_prefill_checkpoint_valid`)"""

    export_grid: Literal["hit_alignment", "unit"] = "hit_alignment"
    """The exported position lies on the hit grid; before 0.32 on the unit, which without a unit lost the block
    boundary. (`sched/scheduler: _mamba_block_aligned_split`, `single_type_kv_cache_manager: MambaManager`)"""

    export_only_at_prefill_end: bool = True
    """With retention 0 only the chunk that ends the prefill reserves a block for the export. Since 0.31.
    (`single_type_kv_cache_manager: _needs_internal_checkpoint`)"""

    export_kept: Literal["mask", "retention_zero", "retention_zero_any"] = "mask"
    """Which exported states lose their key: those that neither the tail, the junction nor the retention mask
    keeps; in 0.31 only with retention 0 and inside the prompt, in 0.30 the tail included. (the same class)"""

    junction_checkpoint_option: str | None = "enable_mamba_shared_prefix_checkpoint"
    """The option that makes a chunk end at the junction itself; another name in 0.30, none before.
    (`vllm/config/cache.py: CacheConfig`)"""

    # --- identity ----------------------------------------------------------------------------------------------
    lora_key_has_path: bool = True
    """A LoRA adapter's path is part of the hash, not only its name. Since 0.31. (`kv_cache_utils:
    _gen_lora_extra_hash_keys`)"""

    # --- what a server can be given ----------------------------------------------------------------------------
    def retention_setting(self, interval: int | None) -> str:
        """The words of a serve command that set a retention interval; None: every state is kept."""
        value = "''" if interval is None else str(interval)
        joint = " " if self.retention_option.startswith("--") else "="
        return f"{self.retention_option}{joint}{value}"

    @property
    def junction_checkpoint_flag(self) -> str | None:
        """The flag of `junction_checkpoint_option`; None where the release has none."""
        option = self.junction_checkpoint_option
        return None if option is None else "--" + option.replace("_", "-")
