"""What a trace of block hashes allows: its block is the finest unit, and every physical block must be a multiple.

Where prompts part inside a hashed block cannot be seen, so finer figures would be guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.units import UnitCandidate
from kvtune.tokenization.errors import UnusableInputError


def check_span(config: EngineConfig, span: int) -> None:
    """Refuse group sizes that a trace of `span`-token block hashes cannot be replayed with.

    Raises:
        UnusableInputError: naming sizes that would work.
    """
    sizes = sorted({group.block_size for group in config.groups})
    odd = [size for size in sizes if size % span]
    if odd:
        near = ", ".join(f"{max(span, round(size / span) * span)} for {size}" for size in odd)
        raise UnusableInputError(
            f"the trace holds hashes of {span}-token blocks: what is shared inside them cannot be seen",
            field="--groups",
            found=f"block size {', '.join(map(str, odd))}",
            wanted=f"multiples of {span}",
            way_out=f"replay with {near}, or use a trace with text or token ids",
        )


def restrict_to_span(candidates: Sequence[UnitCandidate], span: int) -> tuple[UnitCandidate, ...]:
    """Units that are no multiple of `span` stay listed, and are not replayed."""
    if span == 1:
        return tuple(candidates)
    return tuple(
        candidate
        if candidate.unit % span == 0 or not candidate.valid
        else replace(
            candidate, swept=False, reason=f"the trace holds hashes of {span}-token blocks, nothing finer"
        )
        for candidate in candidates
    )
