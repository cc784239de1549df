"""How block sizes are chosen in each release from 0.19 on, as data: what `kvtune.analyzers.profiles` is for hits.

Only sizes: releases before 0.26 have no match unit, so they have a sizing rule and no profile. Read in the released
sources (`vllm/model_executor/models/config.py` up to 0.19, then `vllm/platforms/interface.py:
_align_hybrid_block_size`) of 0.19.1, 0.24.0, 0.26.0, 0.27.1, 0.28.0 and 0.30 to 0.33; what lies between two equal
releases is taken to be equal too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kvtune.tokenization.errors import UnusableInputError

Release = tuple[int, int]
"""`(major, minor)`."""


@dataclass(frozen=True)
class SizingRules:
    """One release's rules for blocks; the defaults are those of 0.33.

    Attributes:
        asks_backend: the attention backend's smallest kernel block and the user's block are the unit of rounding.
            Up to 0.19 it was 16 tokens, 64 for latent attention (128 with CUTLASS_MLA), whatever the user asked for.
        latent_block: hybrid models with latent attention round to this many tokens at least; 0: no such rule.
        side_caches: blocks are also multiples of the indexer's kernel block.
        every_backend: blocks are multiples of the smallest kernel block of every backend that the model uses.
        export_rounds_block: blocks become multiples of the alignment of in-chunk state exports.
        mode_all: Mamba mode `all` exists. default_all: and is the default of models that declare support.
        mode_option: `--mamba-cache-mode` is read (0.33 accepts and ignores it).
        hybrid_caching: prefix caching is on by default for hybrid models; since 0.28.
        match_unit: the option exists.
        flags_draft_group: the group with the draft layers is known to be theirs; before, none was, and a drafter
            that costs a block costs it in every group.
    """

    release: Release
    asks_backend: bool = True
    latent_block: int = 128
    side_caches: bool = True
    every_backend: bool = True
    export_rounds_block: bool = True
    mode_all: bool = False
    default_all: bool = False
    mode_option: bool = False
    hybrid_caching: bool = True
    match_unit: bool = True
    flags_draft_group: bool = True


_V0_33 = SizingRules((0, 33))
_V0_32 = replace(_V0_33, release=(0, 32), export_rounds_block=False, mode_option=True)
_V0_31 = replace(_V0_32, release=(0, 31), every_backend=False, mode_all=True)
_V0_30 = replace(_V0_31, release=(0, 30), flags_draft_group=False)
_V0_29 = replace(_V0_30, release=(0, 29), side_caches=False)
_V0_27 = replace(_V0_29, release=(0, 27), default_all=True, hybrid_caching=False)
_V0_26 = replace(_V0_27, release=(0, 26), latent_block=0)
_V0_25 = replace(_V0_26, release=(0, 25), match_unit=False)
_V0_19 = replace(_V0_25, release=(0, 19), asks_backend=False)

_SINCE: dict[Release, SizingRules] = {
    (0, 33): _V0_33,
    (0, 32): _V0_32,
    (0, 31): _V0_31,
    (0, 30): _V0_30,
    (0, 28): _V0_29,
    (0, 27): _V0_27,
    (0, 26): _V0_26,
    (0, 20): _V0_25,
    (0, 0): _V0_19,
}
"""By the first release that a rule set holds for, newest first."""

NEWEST_RELEASE: Release = (0, 33)
_FIRST_RELEASE: Release = (0, 2)
_VERSION = re.compile(r"\s*v?(\d{1,4})\.(\d{1,4})(?![\d])")


def parse_release(version: str | None) -> Release:
    """`0.32.0`, `v0.33.1rc1`, `0.32` → `(0, 32)`; None is the newest known release.

    Development builds of forks (`0.1.dev20073+g8e685d198`) carry no release; they are taken as the newest.

    Raises:
        UnusableInputError: no version.
    """
    if version is None:
        return NEWEST_RELEASE
    match = _VERSION.match(version)
    if match is None:
        raise UnusableInputError(
            "not a vLLM version", field="engine version", found=repr(version[:40]), wanted="for instance 0.33"
        )
    release = (int(match[1]), int(match[2]))
    return NEWEST_RELEASE if release < _FIRST_RELEASE else release


def release_name(version: str | None) -> str:
    """The version as given; builds that carry no release are named after the newest, whose rules they get."""
    match = _VERSION.match(version or "")
    if version is None or match is None or (int(match[1]), int(match[2])) < _FIRST_RELEASE:
        return f"{NEWEST_RELEASE[0]}.{NEWEST_RELEASE[1]}.0"
    return version.strip()


def sizing_rules(release: Release) -> SizingRules:
    """The rules of a release; newer ones than the newest known get its rules."""
    return next(rules for since, rules in _SINCE.items() if release >= since)
