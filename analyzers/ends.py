"""In which part of the prompt shared prefixes end: where the first token stands that no earlier request had.

Knows lengths and the trace's own index of parts; no blocks.
"""

from __future__ import annotations

from kvtune.analyzers.report import EndsIn, PartCount
from kvtune.tokenization.trace import PARTS, Int64, TokenTrace


def count_ends_by_part(trace: TokenTrace, shared: Int64) -> EndsIn:
    """Requests and shared tokens (`shared` int64[R]) by the part of the prompt that the first own token is in."""
    requests, tokens = dict.fromkeys(PARTS, 0), dict.fromkeys(PARTS, 0)
    for index, length in enumerate(shared.tolist()):
        if length:
            part = trace.parts.part_of(index, length)
            requests[part] += 1
            tokens[part] += length
    return EndsIn(**{part: PartCount(requests[part], tokens[part]) for part in PARTS})
