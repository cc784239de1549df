"""Requests grouped by the head that they were built from, with what became of each group's shared tokens.

Knows family names (given by the trace), lengths and hits; no engine rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvtune.analyzers.report import Verdict
from kvtune.tokenization.trace import Int64, TokenTrace

ALL = "all"


@dataclass(frozen=True)
class RequestFamily:
    """One family: `members` int64[n], request indices in replay order."""

    name: str
    members: Int64


def find_families(trace: TokenTrace) -> list[RequestFamily]:
    """Families by falling number of requests, then by name; one named "all" where the trace knows none."""
    if trace.families is None:
        return [RequestFamily(ALL, np.arange(len(trace), dtype=np.int64))]
    names = np.array(trace.families)
    found = [
        RequestFamily(str(name), np.flatnonzero(names == name).astype(np.int64)) for name in np.unique(names)
    ]
    return sorted(found, key=lambda family: (-len(family.members), family.name))


def verdict_of(
    family: RequestFamily, shared: Int64, hits: Int64, minimum_shared: int, losses: Mapping[str, Int64]
) -> Verdict:
    """What became of the family's shared tokens under one unit.

    `no_sharing`: nothing is shared. `below_floor`: what is shared ends before the first boundary where prompts
    that part later can resume. Then by the larger of the reused tokens and what was lost to missing states or to
    eviction: `reused`, `not_kept`, `evicted`.

    Args:
        shared, hits: int64[R], tokens; losses: int64[R] per kind of loss, as the report names them.
    """
    ends = shared[family.members]
    if not ends.any():
        return "no_sharing"
    reused = int(hits[family.members].sum())
    if reused == 0 and int(ends.max()) < minimum_shared:
        return "below_floor"
    evicted = _sum(losses, ("evicted",), family.members)
    not_kept = _sum(
        losses,
        ("no_recurrent_state", "granularity", "window", "in_flight", "speculative_drop"),
        family.members,
    )
    if reused >= max(evicted, not_kept):
        return "reused"
    return "evicted" if evicted > not_kept else "not_kept"


def _sum(losses: Mapping[str, Int64], kinds: Sequence[str], members: Int64) -> int:
    return sum(int(losses[kind][members].sum()) for kind in kinds if kind in losses)


def typical_end(family: RequestFamily, shared: Int64) -> int:
    """The median end of the family's shared prefixes in tokens, rounded down; 0 where nothing is shared."""
    ends = shared[family.members]
    ends = ends[ends > 0]
    return int(np.median(ends)) if len(ends) else 0
