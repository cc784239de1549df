"""What a scheduler step takes, for replays by timestamps: linear in what the step computes.

The constants are assumed, not measured: a step costs 4 ms, as much as 128 prefilled tokens, which is the order of a
9B-class model on one data-centre GPU. They decide how far requests overlap, hence which states are there in time and
how full the pool gets; they never decide what a rule of the engine does. `kvtune validate` fits them to a machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtune.analyzers.bookkeeping.step_plan import StepPlan


@dataclass(frozen=True)
class StepCostModel:
    """Seconds of a step's parts.

    Attributes:
        step_s: of every step. prefill_token_s: per prompt token computed. attended_pair_s: per pair of a prefilled
            token and a position before or at it. decode_sequence_s: per generated token. context_token_s: per
            position that a generated token reads. prefill_sequence_s: per request with prompt tokens in the step.
    """

    step_s: float = 4e-3
    prefill_token_s: float = 4e-3 / 128
    attended_pair_s: float = 1e-9
    decode_sequence_s: float = 2e-5
    context_token_s: float = 1e-9
    prefill_sequence_s: float = 0.0

    def seconds(self, plan: StepPlan) -> float:
        """How long the step runs; 0 if it computes nothing."""
        if not plan.chunks:
            return 0.0
        total = self.step_s
        for chunk in plan.chunks:
            start, count = chunk.start, chunk.num_tokens
            if start < chunk.sequence.num_prompt_tokens:
                total += self.prefill_sequence_s + count * self.prefill_token_s
                total += (count * (2 * start + count + 1) // 2) * self.attended_pair_s
            else:
                total += count * self.decode_sequence_s + start * self.context_token_s
        return total

    def decode_seconds(self, steps: int, sequences: int, context: int) -> float:
        """How long `steps` decode steps of `sequences` requests take, whose positions sum to `context` at first."""
        flat = self.step_s + sequences * self.decode_sequence_s + context * self.context_token_s
        return steps * flat + sequences * self.context_token_s * (steps * (steps - 1) // 2)


ASSUMED = StepCostModel()
