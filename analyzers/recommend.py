"""From replayed candidates to one recommendation, and how sure it is.

Rules (the report's contract): the largest net gain wins; of those within 0.5 % of it the coarsest; `keep` when
that is the unit in force or the interval of its gain touches zero. A gain can be negative and worth it, where a
coarser unit saves more steps than it loses hits; then its net gain's interval must not touch zero either. The choice
is made on the whole trace; the 70/30 split, the step cost and the number of sessions only move the confidence and
the caveats.

Knows what each candidate reused, request by request; not how that was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvtune.analyzers.interval import session_interval
from kvtune.analyzers.report import Action, Confidence
from kvtune.tokenization.trace import Int32, Int64

TIE_FRACTION = 0.005
TRAIN_FRACTION = 0.7
FEW_SESSIONS = 10


@dataclass(frozen=True)
class Outcome:
    """One replayed unit: int64[R] tokens hit and prefill steps taken, request by request."""

    unit: int
    hit_tokens: Int64
    prefill_steps: Int64


@dataclass(frozen=True)
class Choice:
    """The recommended unit and the evidence for it. Gains are tokens over the unit in force."""

    action: Action
    unit: int
    gain_tokens: int
    net_gain_tokens: int
    interval: tuple[int, int]
    confidence: Confidence
    doubts: tuple[str, ...]


def net_gain(outcome: Outcome, current: Outcome, step_cost: int, requests: slice = slice(None)) -> int:
    """Tokens gained over `current`, less `step_cost` tokens for each extra prefill step."""
    gain = int((outcome.hit_tokens[requests] - current.hit_tokens[requests]).sum())
    steps = int((outcome.prefill_steps[requests] - current.prefill_steps[requests]).sum())
    return gain - step_cost * steps


def best_unit(
    outcomes: Sequence[Outcome], current: Outcome, step_cost: int, requests: slice = slice(None)
) -> Outcome:
    """The coarsest of the outcomes whose net gain is within 0.5 % of the largest."""
    gains = [net_gain(outcome, current, step_cost, requests) for outcome in outcomes]
    floor = max(gains) - TIE_FRACTION * abs(max(gains))
    tied = [outcome for outcome, gain in zip(outcomes, gains, strict=True) if gain >= floor]
    return max(tied, key=lambda outcome: outcome.unit)


def choose(
    outcomes: Sequence[Outcome],
    *,
    current_unit: int,
    default_unit: int,
    step_cost: int,
    sessions: Int32,
    seed: int = 0,
    others_left_out: bool = False,
    refused: int = 0,
) -> Choice:
    """Pick among the outcomes; `current_unit` and `default_unit` are effective units and among them.

    Args:
        others_left_out: the engine accepts units with other grids, which were not replayed.
        refused: requests that can never fit the pool.
    """
    current = next(outcome for outcome in outcomes if outcome.unit == current_unit)
    best = best_unit(outcomes, current, step_cost)
    interval = session_interval(best.hit_tokens - current.hit_tokens, sessions, seed)
    doubts = (*_misfits(refused, len(sessions)), *_doubts(outcomes, current, best, step_cost, sessions))
    net = _net_interval(best, current, step_cost, sessions, seed)
    judged, what = (net, "net of its steps") if interval[1] < 0 else (interval, "of what it reuses more")
    touches_zero = judged[0] <= 0
    if len(outcomes) == 1 and others_left_out:
        action: Action = "keep"
        doubts = ("no other unit was replayed, though the engine accepts some", *doubts)
    elif len(outcomes) == 1:
        action = "cannot_help"
    elif best is current or touches_zero or net_gain(best, current, step_cost) <= 0:
        action = "keep"
    else:
        action = "unset" if best.unit == default_unit else "set"
    if action in ("keep", "cannot_help"):
        if best is not current and touches_zero:
            doubts = (
                f"unit {best.unit:,} would gain {net_gain(best, current, step_cost):,} tokens net on this trace, but "
                f"the 95 % interval {what}, {_signed(judged[0])} to {_signed(judged[1])} tokens, touches zero",
                *doubts,
            )
        best, interval = current, (0, 0)
    elif net[0] <= 0:
        doubts = (
            f"net of its steps, the 95 % interval of the gain, {_signed(net[0])} to {_signed(net[1])} tokens, touches "
            "zero",
            *doubts,
        )
    return Choice(
        action=action,
        unit=best.unit,
        gain_tokens=int((best.hit_tokens - current.hit_tokens).sum()),
        net_gain_tokens=net_gain(best, current, step_cost),
        interval=interval,
        confidence="low" if refused == len(sessions) else _confidence(doubts),
        doubts=doubts,
    )


def _net_interval(
    outcome: Outcome, current: Outcome, step_cost: int, sessions: Int32, seed: int
) -> tuple[int, int]:
    steps = outcome.prefill_steps - current.prefill_steps
    return session_interval(outcome.hit_tokens - current.hit_tokens - step_cost * steps, sessions, seed)


def _signed(tokens: int) -> str:
    return f"{tokens:,}".replace("-", "−")


def _misfits(refused: int, requests: int) -> tuple[str, ...]:
    if not refused:
        return ()
    if refused == requests:
        return ("no request fits the pool, so nothing was compared: it, or the trace, is another server's",)
    return (f"{refused:,} of {requests:,} requests can never fit the pool: the choice rests on the others",)


def _doubts(
    outcomes: Sequence[Outcome], current: Outcome, best: Outcome, step_cost: int, sessions: Int32
) -> tuple[str, ...]:
    """What a careful engineer would add about the choice of `best`, one sentence each."""
    doubts = []
    cheap, dear = best_unit(outcomes, current, step_cost // 2), best_unit(outcomes, current, step_cost * 2)
    if cheap is not best or dear is not best:
        costs: dict[int, list[str]] = {}
        for outcome, cost in ((cheap, step_cost // 2), (best, step_cost), (dear, step_cost * 2)):
            costs.setdefault(outcome.unit, []).append(f"{cost:,}")
        (unit, first), *others = ((unit, " and ".join(places)) for unit, places in costs.items())
        doubts.append(
            f"the choice depends on the step cost: unit {unit:,} at {first} tokens a step, "
            + ", ".join(f"{unit:,} at {places}" for unit, places in others)
        )
    cut = int(len(sessions) * TRAIN_FRACTION)
    if 0 < cut < len(sessions):
        early = best_unit(outcomes, current, step_cost, slice(0, cut))
        later = net_gain(early, current, step_cost, slice(cut, None))
        best_later = best_unit(outcomes, current, step_cost, slice(cut, None))
        most = net_gain(best_later, current, step_cost, slice(cut, None))
        matters = most > TIE_FRACTION * int(current.hit_tokens[cut:].sum())
        if early is not current and later <= 0:
            doubts.append(
                f"chosen on the first 70 % of the requests, unit {early.unit:,} gains nothing on the rest "
                f"({_signed(later)} tokens net)"
            )
        elif matters and later < most / 2:
            doubts.append(
                f"traffic drifts: unit {early.unit:,} is best on the first 70 % of the requests and gains "
                f"{_signed(later)} tokens net on the rest, where unit {best_later.unit:,} gains {most:,}"
            )
    number = len(np.unique(sessions))
    if len(outcomes) > 1 and number < FEW_SESSIONS:
        doubts.append(f"the trace holds only {number} independent session{'s' if number > 1 else ''}")
    return tuple(doubts)


def _confidence(doubts: Sequence[str]) -> Confidence:
    levels: tuple[Confidence, ...] = ("high", "medium", "low")
    return levels[min(len(doubts), 2)]
