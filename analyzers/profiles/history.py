"""Every release's profile, newest first: each is the next newer one with what it did differently.

Read downwards it is the version history of prefix caching in reverse. Values were read in the released sources and
checked against that release's own scheduler by the vectors under `tests/data/vectors`. 0.27 and 0.29 have only the
version matrix of the worked examples: what it does not show is taken from the next newer release.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kvtune.analyzers.profiles.release import ReleaseProfile
from kvtune.tokenization.errors import UnusableInputError

_V0_33 = ReleaseProfile(version="0.33.0")

_V0_32 = replace(
    _V0_33,
    version="0.32.0",
    caching_needs_align=False,
    hashes_look_ahead=False,
    drops_for_every_eagle_like=True,
    dflash_rows="drafts",
    registers_accepted_drafts=False,
    drop_keeps_block_below_junction=False,
    rekeyed_tail_defers_twins=True,
)

_V0_31 = replace(
    _V0_32,
    version="0.31.0",
    single_group_refuses_other_unit=False,
    mamba_modes=frozenset({"align", "none", "all"}),
    boundaries_leave_last_token=False,
    full_tail_leaves_last_token=False,
    mamba_tail_on_block_boundary=False,
    rekeyed_tail_defers_twins=False,
    drop_reads_whole_prompt=False,
    export_grid="unit",
    export_kept="retention_zero",
    state_estimate="export_adds_drafts",
    drafts_travel_past_export=False,
)

_V0_30 = replace(
    _V0_31,
    version="0.30.0",
    single_replicated_group="mismatch",
    long_prefill_threshold_needs_company=False,
    mamba_tail_drop="group",
    export_only_at_prefill_end=False,
    export_kept="retention_zero_any",
    state_estimate="flat",
    junction_checkpoint_option="enable_mamba_fine_grained_prefix_cache",
    lora_key_has_path=False,
)

_V0_29 = replace(
    _V0_30,
    version="0.29.0",
    dropped_tail_is_one_lower=False,
    drop_moves_replay_boundary=False,
    mamba_tail_drop="never",
    junction_checkpoint_option=None,
)

_V0_28 = replace(
    _V0_29,
    version="0.28.0",
    uncacheable_groups=False,
    checks_state_compression=False,
    partial_hits_under_dcp=False,
    single_replicated_group="multiplied",
    hybrid_needs_two_specs=True,
    default_retention_interval=None,
    retention_option="VLLM_PREFIX_CACHE_RETENTION_INTERVAL",
    mask_grid="scheduler_block",
    state_release_skips_gaps=False,
    can_disable_block_drop=False,
    trims_every_full_group=False,
    exports_states=False,
)

_V0_27 = replace(_V0_28, version="0.27.0", draft_rows_by_request=False, dflash_rows="drafts_less_one")

_V0_26 = replace(
    _V0_27,
    version="0.26.0",
    backoff_rule="block_size",
    coarse_group_disables_partial_hits=False,
    align_block_within_budget=True,
    aligns_until="last_block",
    realigns_past_last_block=False,
    splits_wide_blocks=False,
    tail_needs_partial_hits=False,
)

PROFILES: dict[str, ReleaseProfile] = {
    profile.version.rpartition(".")[0]: profile
    for profile in (_V0_33, _V0_32, _V0_31, _V0_30, _V0_29, _V0_28, _V0_27, _V0_26)
}
"""By `major.minor`, newest first."""

NEWEST = _V0_33
FIRST_WITH_MATCH_UNIT = "0.26"

_VERSION = re.compile(r"\s*v?(\d+)\.(\d+)(?:[.+\-]\S*|(?:rc|a|b|dev)\d*)?\s*")


class UnknownReleaseError(UnusableInputError):
    """The release has no match unit, or the text is no version."""


@dataclass(frozen=True)
class SelectedProfile:
    """A profile and what has to be said about using it. `caveat` is None when the release is known."""

    profile: ReleaseProfile
    caveat: str | None


def nearest_profile(release: tuple[int, int]) -> ReleaseProfile:
    """The profile of a release; before the first one, the first; after the newest, the newest."""
    exact = PROFILES.get(f"{release[0]}.{release[1]}")
    if exact is not None:
        return exact
    return PROFILES[FIRST_WITH_MATCH_UNIT] if release < (0, 26) else NEWEST


def profile_for(version: str | None) -> SelectedProfile:
    """The profile of a vLLM version such as `0.32.0`, `0.32` or `v0.33.1rc1`; None: the newest.

    A release newer than the newest known one gets the newest profile and a caveat.

    Raises:
        UnknownReleaseError: for a release before 0.26, which has no match unit, and for what is no version.
    """
    if version is None:
        return SelectedProfile(NEWEST, None)
    match = _VERSION.fullmatch(version)
    if match is None:
        raise UnknownReleaseError(
            "not a vLLM version", field="engine version", found=repr(version[:40]), wanted="for instance 0.33"
        )
    release = (int(match[1]), int(match[2]))
    known = PROFILES.get(f"{release[0]}.{release[1]}")
    if known is not None:
        return SelectedProfile(known, None)
    oldest = tuple(int(part) for part in FIRST_WITH_MATCH_UNIT.split("."))
    if release < oldest:
        raise UnknownReleaseError(
            "there is no match unit in this release",
            field="engine version",
            found=version.strip(),
            wanted=f"{FIRST_WITH_MATCH_UNIT} or newer",
            way_out="sizes can still be resolved; hits cannot be predicted",
        )
    return SelectedProfile(
        NEWEST,
        f"vLLM {version.strip()} is newer than the newest release whose rules are known: "
        f"the rules of {NEWEST.version} are used",
    )
