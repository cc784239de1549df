"""Which lever pays most for each family of requests."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvtune.analyzers.families import find_families
from kvtune.analyzers.levers.trial import Found
from kvtune.analyzers.report import Family
from kvtune.tokenization.trace import TokenTrace

_WORTH = 0.005


def advise_families(rows: Sequence[Family], trace: TokenTrace, levers: Sequence[Found]) -> tuple[Family, ...]:
    """The families with their best lever in `advice`, where it brings at least 0.5% of their prompt tokens."""
    members = {family.name: family.members for family in find_families(trace)}
    advised = []
    for row in rows:
        gains = [
            (int(one.gain.per_request[members[row.name]].sum()) + _common_cost(one), one.lever.title)
            for one in levers
            if one.lever.advice and one.lever.kind != "combination"
        ]
        tokens, title = max(gains, key=lambda gain: gain[0], default=(0, ""))
        if tokens >= max(_WORTH * row.prompt_tokens, 1):
            best = f"best lever: {title[:1].lower()}{title[1:]} ({tokens:+,} tokens here)"
            row = msgspec.structs.replace(row, advice=(*row.advice, best))
        advised.append(row)
    return tuple(advised)


def _common_cost(one: Found) -> int:
    """What a lever costs beside its effect on each request, charged to whoever is to take it: at most 0."""
    return min(one.lever.gain_tokens - int(one.gain.per_request.sum()), 0)
