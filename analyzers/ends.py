"""In which part of the prompt shared prefixes end: where the first token stands that no earlier request had.

Knows lengths and the trace's own index of parts; no blocks.
"""

from __future__ import annotations

import numpy as np

from kvtune.analyzers.histogram import histogram_of_ends
from kvtune.analyzers.report import EndsIn, PartCount
from kvtune.tokenization.trace import PARTS, Int64, TokenTrace


def count_ends_by_part(trace: TokenTrace, shared: Int64, modulo: int, bin_width: int | None = None) -> EndsIn:
    """Requests and shared tokens by the part of the prompt that the first own token is in.

    Args:
        shared: int64[R], tokens; those that share nothing are left out.
        modulo, bin_width: of the histogram.
    """
    ends: dict[str, list[int]] = {part: [] for part in PARTS}
    for index, length in enumerate(shared.tolist()):
        if length:
            ends[trace.parts.part_of(index, length)].append(length)
    return EndsIn(
        **{
            part: PartCount(
                len(lengths),
                sum(lengths),
                histogram_of_ends(np.array(lengths, dtype=np.int64), modulo, bin_width).counts
                if lengths
                else (),
            )
            for part, lengths in ends.items()
        }
    )
