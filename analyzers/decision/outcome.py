"""`Outcome`: what one match unit came to, request by request."""

from __future__ import annotations

from dataclasses import dataclass

from kvtune.tokenization.trace import Float64, Int64


@dataclass(frozen=True)
class Outcome:
    """One replayed unit.

    Attributes:
        unit: the effective one: what hits are multiples of.
        hit_tokens: int64[R], tokens found cached.
        prefill_steps: int64[R], chunks that began inside the prompt.
        prefill_s: float64[R], seconds of these steps, each alone; None without step times.
        ttft_s: float64[R], arrival to first token under load, NaN for refused requests; None where requests were
            replayed one after the other, or without step times.
    """

    unit: int
    hit_tokens: Int64
    prefill_steps: Int64
    prefill_s: Float64 | None = None
    ttft_s: Float64 | None = None
