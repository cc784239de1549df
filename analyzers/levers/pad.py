"""Lever: lengthen a common head to a block boundary, or shorten it to one.

What many prompts share becomes reusable at block boundaries once two of them have met there (a junction); tokens
past the last boundary are computed by everyone. A few tokens more (or fewer) in the head move its end to a boundary.
"""

from __future__ import annotations

import numpy as np

from kvtune.analyzers.levers.edits import FILLER, edit_prompts
from kvtune.analyzers.levers.heads import Head
from kvtune.analyzers.levers.trial import Baseline, Found, try_change
from kvtune.analyzers.report import Lever
from kvtune.tokenization.trace import UInt32

_LIMITS = "not where the head's text is fixed by somebody else, or changes its length often"


def pad(base: Baseline, head: Head, boundary: int) -> Found | None:
    """Add tokens to the head so that it ends at the next multiple of `boundary`; None where that gains nothing, or
    would more than double the head."""
    added = -head.tokens % boundary
    if not 0 < added <= head.tokens:
        return None
    filler = np.full(added, FILLER, dtype=np.uint32)

    def longer(prompt: UInt32) -> UInt32:
        return np.concatenate((prompt[: head.tokens], filler, prompt[head.tokens :]))

    gain = try_change(base, trace=edit_prompts(base.trace, head.members, longer))
    if gain.tokens <= 0:
        return None
    end = head.tokens + added
    lever = Lever(
        kind="pad",
        title=f"Lengthen the common head by {added:,} tokens to {end:,}",
        what=(
            f"Lengthen the head of {head.tokens:,} tokens that {len(head.members):,} requests start with by {added:,} "
            f"tokens, so that it ends at {end:,}, a multiple of {boundary:,}."
        ),
        gain_tokens=gain.tokens,
        gain_ci95=gain.interval,
        change="add stable text (an example, a rule) at the end of the common head, before anything that varies",
        cost=f"{added * len(head.members):,} more prompt tokens in all, already taken off the gain",
        evidence=f"{head.wasted:,} tokens of this head are computed again by requests that share it",
        limits=_LIMITS,
    )
    return Found(lever, gain)


def trim(base: Baseline, head: Head, boundary: int, most: int) -> Found | None:
    """Take at most `most` tokens off the head's end to reach the boundary below; None where that gains nothing."""
    removed = head.tokens % boundary
    if not 0 < removed <= most or removed == head.tokens:
        return None

    def shorter(prompt: UInt32) -> UInt32:
        return np.concatenate((prompt[: head.tokens - removed], prompt[head.tokens :]))

    changed = np.array([r for r in head.members if base.trace.prompt_tokens[r] > head.tokens], dtype=np.int64)
    gain = try_change(base, trace=edit_prompts(base.trace, changed, shorter))
    # What the cut text itself no longer costs is no merit of the cache.
    saved = removed * len(changed)
    if gain.tokens - saved <= 0:
        return None
    end = head.tokens - removed
    lever = Lever(
        kind="trim",
        title=f"Shorten the common head by {removed:,} tokens to {end:,}",
        what=(
            f"Shorten the head of {head.tokens:,} tokens that {len(head.members):,} requests start with by {removed:,} "
            f"tokens, so that it ends at {end:,}, a multiple of {boundary:,}."
        ),
        gain_tokens=gain.tokens - saved,
        gain_ci95=(gain.interval[0] - saved, gain.interval[1] - saved),
        change="shorten the common head; the tokens that the cut itself saves are not counted",
        cost=f"{removed:,} tokens of text",
        evidence=f"{head.wasted:,} tokens of this head are computed again by requests that share it",
        limits=_LIMITS,
    )
    return Found(lever, gain)
