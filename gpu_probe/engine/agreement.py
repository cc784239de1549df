"""Whether executions did what was predicted, and computed the same tokens whatever the cache gave.

Every finding is a sentence for the report. Knows predictions and records; runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from kvtune.gpu_probe.engine.runner import RunRecord
from kvtune.gpu_probe.engine.step import Int64


class Predicted(Protocol):
    """What a replay says per request, int64[R]; a `ReplayResult`, or the record of a rehearsal."""

    @property
    def hit_tokens(self) -> Int64: ...
    @property
    def prefill_steps(self) -> Int64: ...
    @property
    def copies(self) -> Int64: ...
    @property
    def evicted_blocks(self) -> Int64: ...
    @property
    def preemptions(self) -> Int64: ...


_COUNTS = {
    "hit_tokens": "hit tokens",
    "prefill_steps": "prefill steps",
    "copies": "block copies",
    "evicted_blocks": "evicted blocks",
    "preemptions": "preemptions",
}


def departures(name: str, predicted: Predicted, record: RunRecord, ids: Sequence[str]) -> Iterator[str]:
    """Counts that an execution has otherwise than was predicted, request by request."""
    for field, words in _COUNTS.items():
        wanted, found = getattr(predicted, field), getattr(record, field)
        parted = np.flatnonzero(wanted != found)
        if len(parted):
            first = int(parted[0])
            yield (
                f"{name}: {words} differ in {len(parted):,} of {len(ids):,} requests; the first is {ids[first]} "
                f"(predicted {int(wanted[first]):,}, executed {int(found[first]):,})"
            )


def other_tokens(
    base: tuple[str, RunRecord], other: tuple[str, RunRecord], ids: Sequence[str]
) -> Iterator[str]:
    """Requests whose most likely next tokens, or whose logits' bits in an exact run, are not the same."""
    for words, one, two in (
        ("most likely tokens", base[1].greedy, other[1].greedy),
        ("logits", base[1].digests, other[1].digests),
    ):
        parted = [index for index, pair in enumerate(zip(one, two, strict=True)) if pair[0] != pair[1]]
        if parted:
            yield (
                f"{other[0]}: {words} differ from {base[0]}'s in {len(parted):,} of {len(ids):,} requests, "
                f"the first is {ids[parted[0]]}"
            )
