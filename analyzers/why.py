"""The recommendation in words: what the choice gains, and why the finest unit is or is not the best one.

A finer unit does not keep states along a prompt. It adds one resumable position: the prompt's own last unit
boundary, floor((P - 1) / unit) * unit. That position serves a later prompt only where it lies inside text which
that prompt repeats; counting those prompts explains most differences between units.

Knows lengths, shared lengths and outcomes; no engine, no terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtune.analyzers.recommend import Choice, Outcome, best_unit, net_gain
from kvtune.tokenization.trace import Int64


@dataclass(frozen=True)
class Setting:
    """What the words are about.

    Attributes:
        repeated: int64[R], the longest prefix of each prompt that a later one repeats.
        refused: requests that can never fit the pool.
    """

    prompt_tokens: Int64
    repeated: Int64
    current_unit: int
    default_unit: int
    scheduler_block_size: int
    step_cost: int
    has_recurrent_state: bool
    caches: bool = True
    refused: int = 0


def useful_tails(prompt_tokens: Int64, repeated: Int64, unit: int) -> int:
    """Prompts whose last unit boundary (a state is kept there) lies in a prefix that a later prompt repeats."""
    tails = (prompt_tokens - 1) // unit * unit
    return int(((tails > 0) & (tails <= repeated)).sum())


def explain_choice(choice: Choice, outcomes: Sequence[Outcome], setting: Setting) -> str:
    """Two to four sentences for the report's `why`."""
    by_unit = {outcome.unit: outcome for outcome in outcomes}
    current, best = by_unit[setting.current_unit], by_unit[choice.unit]
    finest = by_unit[min(by_unit)]
    if not setting.caches:
        return "Prefix caching is off: every prompt is computed whole, whatever the unit."
    if setting.refused == len(setting.prompt_tokens):
        return "No request fits the pool: nothing is reused, whatever the unit."
    if choice.action == "cannot_help":
        return (
            f"Hits land on multiples of {choice.unit:,} tokens whatever the unit: no other unit that the engine "
            "accepts changes the grid."
        )
    sentences = [_headline(choice, outcomes, current, best, setting)]
    if setting.has_recurrent_state:
        sentences += _about_finest(best, finest, current, setting)
    return " ".join(sentences)


def _what_others_gain(outcomes: Sequence[Outcome], current: Outcome, step_cost: int) -> str:
    """Of the units that are not in force, where none of them is advised."""
    if len(outcomes) == 1:
        return "no other was replayed"
    other = best_unit(outcomes, current, step_cost)
    gain = net_gain(other, current, step_cost)
    if other is current or gain <= 0:
        return "no other gains more, net of its steps"
    return f"that unit {other.unit:,} gains more ({gain:,} net of its steps) is not certain"


def _headline(
    choice: Choice, outcomes: Sequence[Outcome], current: Outcome, best: Outcome, setting: Setting
) -> str:
    today = f"today's unit ({setting.current_unit:,})"
    if choice.action == "keep":
        hits = int(current.hit_tokens.sum())
        finer = (
            "already lets hits end inside a block and " if current.unit < setting.scheduler_block_size else ""
        )
        others = _what_others_gain(outcomes, current, setting.step_cost)
        return f"Unit {choice.unit:,}, in force today, {finer}reuses {hits:,} tokens; {others}."
    before, after = int(current.hit_tokens.sum()), int(best.hit_tokens.sum())
    change = (
        f"{abs(after - before) / before * 100:.1f} % {'more' if after >= before else 'less'}"
        if before
        else ""
    )
    more = f"{change} than" if before else "where none is reused with"
    return f"Unit {best.unit:,} reuses {after:,} tokens, {more} {today}."


def _about_finest(best: Outcome, finest: Outcome, current: Outcome, setting: Setting) -> list[str]:
    requests = len(setting.prompt_tokens)

    def tails(outcome: Outcome) -> int:
        return useful_tails(setting.prompt_tokens, setting.repeated, outcome.unit)

    rule = "A hit needs a recurrent state that the engine kept, and each prompt leaves one at its last unit boundary"
    if finest.unit == best.unit:
        if finest is current:
            return []
        return [
            f"{rule}; at {best.unit:,} that boundary lies in text which a later prompt repeats for {tails(best):,} of "
            f"{requests:,} prompts, so the finest unit replayed is also the best."
        ]
    gain = net_gain(finest, current, setting.step_cost)
    net = f"{'gains' if gain >= 0 else 'loses'} {abs(gain):,} net"
    hits = int(finest.hit_tokens.sum())
    one, other = tails(best), tails(finest)
    if other < one / 2:
        fewer = f"only for {other:,}" if other else "for none"
        return [
            f"{rule}: at {best.unit:,} it lies in text which a later prompt repeats for {one:,} of {requests:,} "
            f"prompts, at {finest.unit:,} {fewer}, where it mostly falls into each prompt's own end.",
            f"So the finest unit replayed ({finest.unit:,}) reuses {hits:,} tokens"
            + (", today's figure." if finest is current else f" and {net}."),
        ]
    extra = int((finest.prefill_steps - best.prefill_steps).sum())
    link = "but" if hits > int(best.hit_tokens.sum()) and extra > 0 else "and"
    more = "more" if extra >= 0 else "fewer"
    steps = "step" if abs(extra) == 1 else "steps"
    best_gain = net_gain(best, current, setting.step_cost)
    tied = ", too little more for the finer unit" if best is not current and gain > best_gain else ""
    if finest is current:
        ending = f", which cost {setting.step_cost:,} tokens each."
    else:
        ending = f": at {setting.step_cost:,} tokens a step it {net}{tied}."
    return [
        f"The finest unit replayed ({finest.unit:,}) reuses {hits:,} tokens {link} takes {abs(extra):,} {more} prefill "
        f"{steps} than {best.unit:,}{ending}"
    ]
