"""Requests grouped by the head that they were built from, with what became of each group's shared tokens.

Knows family names (given by the trace), lengths and hits; no engine rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvtune.analyzers.histogram import histogram_of_ends
from kvtune.analyzers.loss_kinds import LOSS_KINDS
from kvtune.analyzers.report import Family, Histogram, Verdict
from kvtune.tokenization.trace import Int64, TokenTrace

ALL = "all"
LARGE_FAMILIES = 6
"""Families that get a histogram of their own."""


@dataclass(frozen=True)
class RequestFamily:
    """One family: `members` int64[n], request indices in replay order."""

    name: str
    members: Int64


def find_families(trace: TokenTrace) -> list[RequestFamily]:
    """Families by falling number of prompt tokens, then by name; one named "all" where the trace knows none."""
    if trace.families is None:
        return [RequestFamily(ALL, np.arange(len(trace), dtype=np.int64))]
    names = np.array(trace.families)
    found = [
        RequestFamily(str(name), np.flatnonzero(names == name).astype(np.int64)) for name in np.unique(names)
    ]
    return sorted(found, key=lambda one: (-int(trace.prompt_tokens[one.members].sum()), one.name))


def verdict_of(
    family: RequestFamily, shared: Int64, hits: Int64, minimum_shared: int, losses: Mapping[str, Int64]
) -> Verdict:
    """What became of the family's shared tokens under one unit.

    `no_sharing`: nothing is shared. `below_floor`: nothing is reused, and what is shared ends before the first boundary
    where prompts that diverge later can resume. `reused`: more comes back than any one reason takes. Else the verdict
    of the largest loss.

    Args:
        shared, hits: int64[R], tokens; losses: int64[R] per kind of loss, as the report names them.
    """
    ends = shared[family.members]
    if not ends.any():
        return "no_sharing"
    reused = int(hits[family.members].sum())
    if reused == 0 and int(ends.max()) < minimum_shared:
        return "below_floor"
    verdict: Verdict = "reused"
    most = reused
    for kind in LOSS_KINDS:
        lost = int(losses[kind.name][family.members].sum()) if kind.name in losses else 0
        if lost > most:
            verdict, most = kind.verdict, lost
    return verdict


def typical_end(family: RequestFamily, shared: Int64) -> int:
    """The median end of the family's shared prefixes in tokens, rounded down; 0 where nothing is shared."""
    ends = shared[family.members]
    ends = ends[ends > 0]
    return int(np.median(ends)) if len(ends) else 0


def spread_of_ends(family: RequestFamily, shared: Int64) -> tuple[int, int] | None:
    """The 10th and 90th percentile of the ends, tokens, rounded down; None where nothing is shared."""
    ends = shared[family.members]
    ends = ends[ends > 0]
    if not len(ends):
        return None
    low, high = np.percentile(ends, [10, 90])
    return int(low), int(high)


def family_rows(
    trace: TokenTrace,
    shared: Int64,
    hits: Mapping[int, Int64],
    *,
    recommended: int,
    losses: Mapping[str, Int64],
    minimum_shared: int,
    modulo: int,
    bin_width: int | None,
    caches: bool = True,
    keeps_states: bool = True,
) -> tuple[Family, ...]:
    """One row per family, the largest first.

    Args:
        shared: int64[R]; hits: int64[R] by grid; losses: of the recommended grid; modulo: the scheduler block.
        keeps_states: whether the model has layers that resume from kept states only: others need no warm-up.
        caches: whether prefix caching is on; without it no advice on prompts helps.
    """
    families = find_families(trace)
    rows = []
    for rank, family in enumerate(families):
        members = family.members
        verdict = verdict_of(family, shared, hits[recommended], minimum_shared, losses)
        ends = histogram_of_ends(shared[members], modulo, bin_width)
        rows.append(
            Family(
                name=family.name,
                requests=len(members),
                prompt_tokens=int(trace.prompt_tokens[members].sum()),
                shared_tokens=int(shared[members].sum()),
                typical_end=typical_end(family, shared),
                spread_of_ends=spread_of_ends(family, shared),
                engine_hit_tokens={grid: int(tokens[members].sum()) for grid, tokens in hits.items()},
                verdict=verdict,
                advice=_advice(
                    verdict,
                    longest=int(shared[members].max()),
                    minimum_shared=minimum_shared,
                    requests=len(members),
                    alignment=recommended,
                    keeps_states=keeps_states,
                )
                if caches
                else ("prefix caching is off: nothing that it shares is reused",),
                histogram=Histogram(modulo=ends.modulo, bin_width=ends.bin_width, counts=ends.counts)
                if rank < LARGE_FAMILIES and len(families) > 1
                else None,
            )
        )
    return tuple(rows)


def _advice(
    verdict: Verdict, *, longest: int, minimum_shared: int, requests: int, alignment: int, keeps_states: bool
) -> tuple[str, ...]:
    if requests == 1:
        return ()  # nothing of its own to come back to
    if verdict == "no_sharing":
        return ("its prompts share nothing: no cache setting helps it",)
    if verdict == "below_floor":
        way = "send the shared prefix once on its own, or lengthen it" if keeps_states else "lengthen it"
        return (
            f"its prompts share at most {longest:,} tokens; prompts that diverge later can resume from "
            f"{minimum_shared:,} on: {way}",
        )
    return tuple(kind.advice.format(alignment=alignment) for kind in LOSS_KINDS if kind.verdict == verdict)
