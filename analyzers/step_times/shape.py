"""What a step is, as far as its time is concerned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from kvtune.analyzers.bookkeeping.step_plan import Chunk
from kvtune.tokenization.trace import Int64

Count = TypeVar("Count", int, Int64)

FEATURES = (
    "step",
    "prefill token",
    "attended pair",
    "decode token",
    "decode context token",
    "prefill request",
)
"""What a step's time is linear in, for fits; in order."""


def attended_pairs(start: Count, tokens: Count) -> Count:
    """Positions before and at the tokens of a chunk, summed over them: of one chunk, or of each of N."""
    return tokens * (2 * start + tokens + 1) // 2


class StepShape(NamedTuple):
    """One scheduler step. Counts of tokens and requests.

    Attributes:
        prefill_tokens: of chunks that begin inside the prompt.
        prefill_requests: how many such chunks there are.
        attended_pairs: sum over their tokens of the positions before and at them.
        decode_tokens: of chunks behind the prompt.
        decode_context: the sum of the positions where these begin.
    """

    prefill_tokens: int
    prefill_requests: int
    attended_pairs: int
    decode_tokens: int
    decode_context: int

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> StepShape:
        """The shape of a planned step."""
        tokens = requests = pairs = decodes = context = 0
        for chunk in chunks:
            start, count = chunk.start, chunk.num_tokens
            if start < chunk.sequence.num_prompt_tokens:
                tokens += count
                requests += 1
                pairs += attended_pairs(start, count)
            else:
                decodes += count
                context += start
        return cls(tokens, requests, pairs, decodes, context)

    def features(self) -> tuple[float, ...]:
        """1 and the fields, in the order of `FEATURES`."""
        return (
            1.0,
            float(self.prefill_tokens),
            float(self.attended_pairs),
            float(self.decode_tokens),
            float(self.decode_context),
            float(self.prefill_requests),
        )

    def mean_chunk(self) -> tuple[float, float]:
        """(start, tokens) of the chunk that, `prefill_requests` times, has the same tokens and attended pairs."""
        tokens = self.prefill_tokens / self.prefill_requests
        start = self.attended_pairs / self.prefill_tokens - (tokens + 1) / 2
        return max(0.0, start), tokens
