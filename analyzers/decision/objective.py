"""`Objective`: what the choice of a match unit minimises, request by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvtune.analyzers.decision.line import worst_losses
from kvtune.analyzers.decision.outcome import Outcome
from kvtune.analyzers.step_times.overhead import PLAUSIBLE_OVERHEAD
from kvtune.tokenization.trace import Float64

Kind = Literal["gpu-time", "ttft", "tokens", "overhead", "worst-case"]

NOMINAL_OVERHEAD = 128
"""Tokens a step, where net gains are stated in tokens and nobody gave a step overhead."""

TIE_FRACTION = 0.005
LEAST_NET_GAIN = 0.005
"""Of all prompt tokens, or of the prefill time: what a change must bring to be advised."""


@dataclass(frozen=True)
class Objective:
    """What is minimised.

    Attributes:
        kind: `gpu-time` is summed prefill time, `ttft` summed time to first token, `tokens` recomputed tokens,
            `overhead` recomputed tokens + `step_overhead` * prefill steps; `worst-case` is the largest relative loss
            over all plausible step overheads, where nothing is known of the server's.
        step_overhead: tokens, of `overhead` and of every net gain in tokens.
        token_s: seconds of a token in a long prefill, which states times in tokens; None without step times.
        range: [low, high] factors between which a step's real overhead lies, over that of the step times.
    """

    kind: Kind = "worst-case"
    step_overhead: int = NOMINAL_OVERHEAD
    token_s: float | None = None
    range: tuple[float, float] = (1.0, 1.0)

    @property
    def in_seconds(self) -> bool:
        """Whether costs are seconds; else tokens."""
        return self.kind in ("gpu-time", "ttft")

    @property
    def overheads(self) -> tuple[float, float]:
        """Plausible step overheads, tokens: [low, high]."""
        if self.kind == "overhead":
            return self.step_overhead / 2, self.step_overhead * 2
        return PLAUSIBLE_OVERHEAD

    def cost(self, outcome: Outcome) -> Float64:
        """float64[R]: what each request costs under a unit; `worst-case` as with the nominal step overhead."""
        if self.kind == "gpu-time" and outcome.prefill_s is not None:
            return outcome.prefill_s
        if self.kind == "ttft":
            waited = outcome.prefill_s if outcome.ttft_s is None else outcome.ttft_s
            if waited is not None:
                return np.nan_to_num(waited)
        price = 0 if self.kind == "tokens" else self.step_overhead
        tokens: Float64 = (price * outcome.prefill_steps - outcome.hit_tokens).astype(np.float64)
        return tokens

    def gain(self, outcome: Outcome, current: Outcome, requests: slice = slice(None)) -> float:
        """What a unit saves over the current one: seconds or tokens, net of its steps."""
        return float((self.cost(current)[requests] - self.cost(outcome)[requests]).sum())

    def best(
        self, outcomes: Sequence[Outcome], current: Outcome, prompt_tokens: int, requests: slice = slice(None)
    ) -> Outcome:
        """The unit to choose: the coarsest of those that come within 0.5% of the largest gain, or, with
        `worst-case`, within 0.5 points of the smallest worst loss.

        Args:
            prompt_tokens: of these requests.
        """
        if self.kind == "worst-case":
            losses = worst_losses(
                [_part(outcome, requests) for outcome in outcomes], prompt_tokens, self.overheads
            )
            tied = [
                outcome
                for outcome, loss in zip(outcomes, losses, strict=True)
                if loss <= losses.min() + TIE_FRACTION
            ]
        else:
            gains = [self.gain(outcome, current, requests) for outcome in outcomes]
            floor = max(gains) - TIE_FRACTION * abs(max(gains))
            tied = [outcome for outcome, gain in zip(outcomes, gains, strict=True) if gain >= floor]
        return max(tied, key=lambda outcome: outcome.unit)


def net_gain(outcome: Outcome, current: Outcome, step_overhead: int, requests: slice = slice(None)) -> int:
    """Tokens gained over `current`, less `step_overhead` tokens for each extra prefill step."""
    gain = int((outcome.hit_tokens[requests] - current.hit_tokens[requests]).sum())
    steps = int((outcome.prefill_steps[requests] - current.prefill_steps[requests]).sum())
    return gain - step_overhead * steps


def _part(outcome: Outcome, requests: slice) -> Outcome:
    return Outcome(outcome.unit, outcome.hit_tokens[requests], outcome.prefill_steps[requests])
