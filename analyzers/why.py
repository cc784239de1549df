"""The recommendation in words: what it minimises and brings, and why the finest match unit is or is not the best one.

A finer unit does not keep states along a prompt. It adds one resumable position: the prompt's own last boundary,
floor((P - 1) / unit) * unit. That position serves a later prompt only where it lies inside text which that prompt
repeats; counting those prompts explains most differences between units.

Knows lengths, shared lengths and outcomes; no engine, no terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtune.analyzers.decision import Choice, Objective, Outcome
from kvtune.analyzers.report import UNDECIDABLE
from kvtune.tokenization.trace import Int64


@dataclass(frozen=True)
class Setting:
    """What the words are about.

    Attributes:
        prompt_tokens: int64[R].
        repeated: int64[R], the longest prefix of each prompt that a later one repeats.
        current_unit, default_unit: effective units.
        objective: what the choice minimises.
        has_recurrent_state: the model has layers that resume from kept states only.
        caches: prefix caching is on. refused: requests that can never fit the pool.
    """

    prompt_tokens: Int64
    repeated: Int64
    current_unit: int
    default_unit: int
    scheduler_block_size: int
    objective: Objective
    has_recurrent_state: bool
    caches: bool = True
    refused: int = 0

    @property
    def step_overhead(self) -> int:
        """Tokens, of net gains that are stated in tokens."""
        return self.objective.step_overhead


def useful_tails(prompt_tokens: Int64, repeated: Int64, unit: int) -> int:
    """Prompts whose last unit boundary (a state is kept there) lies in a prefix that a later prompt repeats."""
    tails = (prompt_tokens - 1) // unit * unit
    return int(((tails > 0) & (tails <= repeated)).sum())


def explain_choice(choice: Choice, outcomes: Sequence[Outcome], setting: Setting) -> str:
    """One to three sentences for the report's `why`."""
    by_unit = {outcome.unit: outcome for outcome in outcomes}
    current, best = by_unit[setting.current_unit], by_unit[choice.unit]
    if not setting.caches:
        return "Prefix caching is off: every prompt is computed whole, whatever the match unit."
    if setting.refused == len(setting.prompt_tokens):
        return "No request fits the pool: nothing is reused, whatever the match unit."
    if choice.action == "cannot_help" and len(outcomes) == 1:
        return (
            f"Hits are multiples of {choice.unit:,} tokens whatever the match unit: no unit that the engine accepts "
            "changes that."
        )
    if choice.action == "cannot_help":
        return UNDECIDABLE
    sentences = [_what_is_minimised(choice, outcomes, current, best)]
    finest = by_unit[min(by_unit)]
    if setting.has_recurrent_state and finest.unit != best.unit:
        sentences += _about_finest(best, finest, setting)
    return " ".join(sentence for sentence in sentences if sentence)


def _what_is_minimised(choice: Choice, outcomes: Sequence[Outcome], current: Outcome, best: Outcome) -> str:
    if len(outcomes) == 1:
        return "No other match unit was replayed."
    least = {
        "gpu-time": "the least GPU time of prefill",
        "ttft": "the least time to first token",
        "tokens": "the fewest recomputed tokens",
        "overhead": f"the largest net gain at a step overhead of {choice.objective.step_overhead:,} tokens",
        "worst-case": "the smallest worst loss over step overheads from "
        f"{choice.objective.overheads[0]:,.0f} to {choice.objective.overheads[1]:,.0f} tokens",
    }[choice.objective.kind]
    if best is current and choice.action == "keep" and any("would gain" in doubt for doubt in choice.doubts):
        return "No other match unit is surely better."
    return f"Match unit {best.unit:,} has {least}."


def _about_finest(best: Outcome, finest: Outcome, setting: Setting) -> list[str]:
    requests = len(setting.prompt_tokens)
    at_best, at_finest = (
        useful_tails(setting.prompt_tokens, setting.repeated, outcome.unit) for outcome in (best, finest)
    )
    hits, steps = (
        int(getattr(finest, name).sum()) - int(getattr(best, name).sum())
        for name in ("hit_tokens", "prefill_steps")
    )
    compared = (
        f"The finest unit replayed ({finest.unit:,}) reuses {abs(hits):,} tokens {'more' if hits >= 0 else 'less'} and "
        f"takes {abs(steps):,} {'more' if steps >= 0 else 'fewer'} prefill steps."
    )
    if at_finest >= at_best / 2:
        return [compared]
    return [
        compared,
        f"Each prompt leaves a state at its last boundary: with unit {best.unit:,} it lies in text that a later prompt "
        f"repeats for {at_best:,} of {requests:,} prompts, with {finest.unit:,} for {at_finest:,}.",
    ]
