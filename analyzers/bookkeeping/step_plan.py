"""What one scheduler step asks the workers to do."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from kvtune.analyzers.bookkeeping.lookup import Hit
from kvtune.analyzers.bookkeeping.manager import Copy
from kvtune.analyzers.bookkeeping.sequence import Sequence


class Chunk:
    """Tokens of one request in one step.

    Attributes:
        start: tokens computed before it. num_tokens: scheduled, drafts included. num_drafts: drafts to verify.
        samples: the step yields a token for this request. hit: the request's hit if it is admitted in this step.
    """

    __slots__ = ("hit", "num_drafts", "num_tokens", "samples", "sequence", "start")

    def __init__(
        self, sequence: Sequence, start: int, num_tokens: int, num_drafts: int = 0, hit: Hit | None = None
    ) -> None:
        self.sequence = sequence
        self.start = start
        self.num_tokens = num_tokens
        self.num_drafts = num_drafts
        self.hit = hit
        self.samples = False


class StepPlan:
    """Chunks in scheduling order, the block copies to make before them, and who was preempted for them."""

    __slots__ = ("chunks", "copies", "preempted")

    def __init__(self, chunks: list[Chunk], copies: Seq[Copy], preempted: Seq[Sequence]) -> None:
        self.chunks = chunks
        self.copies = copies
        self.preempted = preempted

    @property
    def num_tokens(self) -> int:
        """Tokens scheduled in all."""
        return sum(chunk.num_tokens for chunk in self.chunks)
