"""From replayed match units to one choice, and how sure it is.

Rules (the report's contract): the unit with the least cost under the objective; of near-equal ones the coarsest. It is
advised only where the 95% interval of its net gain lies above zero and the net gain is at least 0.5% of the prompt
tokens, or of the prefill time. With step times, a change must also lose no more than staying could, over the range in
which real steps are expected. The choice is made on the whole trace; what else it could lose (`regret`) and how much
was seen only move the confidence and the caveats.

Knows what each unit reused, request by request; not how that was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvtune.analyzers.decision.interval import session_interval
from kvtune.analyzers.decision.objective import LEAST_NET_GAIN, Objective, net_gain
from kvtune.analyzers.decision.outcome import Outcome
from kvtune.analyzers.decision.regret import (
    FEW_CLUSTERS,
    WORTH_SAYING,
    Evidence,
    Regret,
    overhead_loss,
    regret_of,
)
from kvtune.analyzers.report import Action, Confidence

HIGH_REGRET = 0.01
MEDIUM_REGRET = 0.03
"""Of all prompt tokens: what a choice may lose to be of high and of medium confidence."""

FEW_PROMPTS = 10

_GRADES: tuple[Confidence, ...] = ("low", "medium", "high")


@dataclass(frozen=True)
class Cap:
    """The highest confidence that something allows, and why: a sentence for the caveats. With `decides`, no unit is
    advised at all."""

    confidence: Confidence
    reason: str
    decides: bool = False


@dataclass(frozen=True)
class Choice:
    """The recommended unit and the evidence for it. Gains are over the current unit.

    Attributes:
        unit: the effective one, also where nothing changes.
        gain_tokens: more hit tokens. interval: its 95% interval.
        net_gain_tokens: less the objective's step overhead for each extra prefill step.
        gain: under the objective, seconds or tokens. gain_interval: its 95% interval.
        gain_fraction: `gain` over what is spent now: prefill time, or all prompt tokens.
        regret: what it can lose; None where there was nothing to choose from.
        doubts: sentences for the caveats.
        gain_by_half: of hit tokens, fractions of the prompt tokens of the earlier and the later half of the requests.
        undecidable: the log does not let any unit be advised.
    """

    action: Action
    unit: int
    gain_tokens: int
    net_gain_tokens: int
    interval: tuple[int, int]
    confidence: Confidence
    doubts: tuple[str, ...]
    objective: Objective
    gain: float = 0.0
    gain_interval: tuple[float, float] = (0.0, 0.0)
    gain_fraction: float = 0.0
    regret: Regret | None = None
    gain_by_half: tuple[float, float] = (0.0, 0.0)
    undecidable: bool = False


def choose(
    outcomes: Sequence[Outcome],
    *,
    current_unit: int,
    default_unit: int,
    objective: Objective,
    evidence: Evidence,
    seed: int = 0,
    others_left_out: bool = False,
    refused: int = 0,
    caps: Sequence[Cap] = (),
) -> Choice:
    """Pick among the outcomes; `current_unit` and `default_unit` are effective units and among them.

    Args:
        others_left_out: the engine accepts units with other alignments, which were not replayed.
        refused: requests that can never fit the pool.
        caps: what else limits the confidence, such as a log whose own numbers disagree.
    """
    current = next(outcome for outcome in outcomes if outcome.unit == current_unit)
    requests, total = len(evidence.prompt_tokens), int(evidence.prompt_tokens.sum())
    best = objective.best(outcomes, current, total)
    gain, interval = _gain(best, current, objective, evidence, seed)
    spent = float(objective.cost(current).sum()) if objective.in_seconds else float(total)
    fraction = gain / spent if spent else 0.0
    doubts: list[str] = []
    if len(outcomes) == 1 and others_left_out:
        action: Action = "keep"
        caps = [*caps, Cap("medium", "No other match unit was replayed, though the engine accepts some.")]
    elif len(outcomes) == 1 or any(cap.decides for cap in caps):
        action = "cannot_help"
    elif best is current:
        action = "keep"
    elif interval[0] <= 0 or fraction < LEAST_NET_GAIN:
        action = "keep"
        doubts.append(_too_little(best, objective, gain, interval, fraction))
    elif objective.in_seconds and (risk := _riskier(best, current, outcomes, objective, total)) is not None:
        action = "keep"
        doubts.append(f"{_would_gain(best, objective, gain, fraction)}, but {risk}")
    else:
        action = "unset" if best.unit == default_unit else "set"
    chosen = best if action in ("set", "unset") else current
    regret = regret_of(chosen, outcomes, objective, evidence, seed) if len(outcomes) > 1 else None
    limits = [*caps, *_caps(regret, evidence, objective, refused, len(outcomes))]
    graded = _grade(regret, limits)
    changes = chosen is not current
    return Choice(
        action=action,
        unit=chosen.unit,
        gain_tokens=int((chosen.hit_tokens - current.hit_tokens).sum()),
        net_gain_tokens=net_gain(chosen, current, objective.step_overhead),
        interval=session_interval(chosen.hit_tokens - current.hit_tokens, evidence.clusters, seed)
        if changes
        else (0, 0),
        confidence="low" if refused == requests else graded,
        doubts=tuple(dict.fromkeys((*doubts, *(cap.reason for cap in limits), *_regrets(regret, objective)))),
        objective=objective,
        gain=gain if changes else 0.0,
        gain_interval=interval if changes else (0.0, 0.0),
        gain_fraction=fraction if changes else 0.0,
        regret=regret,
        gain_by_half=_by_half(chosen, current, evidence),
        undecidable=any(cap.decides for cap in caps),
    )


def _by_half(chosen: Outcome, current: Outcome, evidence: Evidence) -> tuple[float, float]:
    gains, half = chosen.hit_tokens - current.hit_tokens, len(chosen.hit_tokens) // 2
    early, late = (
        int(gains[part].sum()) / max(1, int(evidence.prompt_tokens[part].sum()))
        for part in (slice(0, half), slice(half, None))
    )
    return early, late


def _gain(
    best: Outcome, current: Outcome, objective: Objective, evidence: Evidence, seed: int
) -> tuple[float, tuple[float, float]]:
    """What the best unit saves under the objective, and its 95% interval."""
    saved = objective.cost(current) - objective.cost(best)
    scale = 1e6 if objective.in_seconds else 1.0
    low, high = session_interval(np.rint(saved * scale).astype(np.int64), evidence.clusters, seed)
    return float(saved.sum()), (low / scale, high / scale)


def amount(value: float, objective: Objective) -> str:
    """A gain in the objective's unit, signed: `+12,345 tokens`, `−1.25 s`."""
    sign = "−" if value < 0 else "+"
    if objective.in_seconds:
        return f"{sign}{abs(value):,.3g} s"
    return f"{sign}{abs(value):,.0f} tokens"


def _riskier(
    best: Outcome, current: Outcome, outcomes: Sequence[Outcome], objective: Objective, total: int
) -> str | None:
    """Why a change is the greater risk, where real steps may take other times than was predicted; None if it is not."""
    change, stay = (
        overhead_loss(list(outcomes).index(unit), outcomes, objective, total)[0] for unit in (best, current)
    )
    if change <= stay:
        return None
    low, high = objective.range
    return (
        f"{_if_steps_take(low, high)}, it loses up to {change:.1%} of all prompt tokens against the best match unit, "
        f"the current one {stay:.1%}."
    )


def _if_steps_take(low: float, high: float) -> str:
    return f"if steps take {low:.2g} to {high:.2g} times what was predicted"


def _would_gain(best: Outcome, objective: Objective, gain: float, fraction: float) -> str:
    what = "prefill time" if objective.in_seconds else "all prompt tokens"
    return f"Match unit {best.unit:,} would gain {amount(gain, objective)} net ({fraction:.2%} of {what})"


def _too_little(
    best: Outcome, objective: Objective, gain: float, interval: tuple[float, float], fraction: float
) -> str:
    would_gain = _would_gain(best, objective, gain, fraction)
    if interval[0] <= 0:
        low, high = (amount(value, objective) for value in interval)
        return f"{would_gain}, but its 95% interval, {low} to {high}, touches zero."
    return f"{would_gain}: less than {LEAST_NET_GAIN:.1%}, not worth a change."


def _caps(
    regret: Regret | None, evidence: Evidence, objective: Objective, refused: int, units: int
) -> list[Cap]:
    caps = []
    requests = len(evidence.prompt_tokens)
    if refused == requests:
        caps.append(
            Cap(
                "low",
                "No request fits the pool: pool or trace belong to another server.",
            )
        )
    elif refused:
        caps.append(
            Cap(
                "medium",
                f"{refused:,} of {requests:,} requests never fit the pool: the choice rests on the others.",
            )
        )
    if units == 1:
        return caps
    if evidence.distinct_prompts < FEW_PROMPTS:
        number = (
            f"{evidence.distinct_prompts:,} different prompt{'s' if evidence.distinct_prompts > 1 else ''}"
        )
        caps.append(Cap("low", f"The trace holds only {number}."))
    sessions = len(np.unique(evidence.sessions))
    if sessions < FEW_CLUSTERS:
        caps.append(
            Cap(
                "medium",
                f"The trace holds only {sessions} independent conversation{'s' if sessions > 1 else ''}.",
            )
        )
    if objective.kind == "worst-case" and regret is not None and regret.line_changes:
        caps.append(
            Cap("medium", "Step overhead not known: another match unit is best on some servers (--hardware).")
        )
    return caps


def _grade(regret: Regret | None, caps: Sequence[Cap]) -> Confidence:
    worst = regret.worst[0] if regret is not None else 0.0
    grade = 2 if worst <= HIGH_REGRET else 1 if worst <= MEDIUM_REGRET else 0
    return _GRADES[min([grade, *(_GRADES.index(cap.confidence) for cap in caps)])]


def _regrets(regret: Regret | None, objective: Objective) -> list[str]:
    """What the choice can lose, one sentence a cause."""
    if regret is None:
        return []
    low, high = objective.overheads
    overhead = (
        _if_steps_take(*objective.range).capitalize()
        if objective.in_seconds
        else f"At a step overhead between {low:,.0f} and {high:,.0f} tokens"
    )
    margin = (
        f" It holds while they shrink by at most {regret.margin:,} token{'s' if regret.margin > 1 else ''}."
        if regret.margin
        else ""
    )
    causes = (
        (
            regret.overhead,
            f"{overhead}, this choice loses up to {{}} of all prompt tokens against the best one.",
        ),
        (regret.time, "In one half of the trace, another match unit is better by {} of its prompt tokens."),
        (
            regret.conversations,
            "With other conversations of this kind, this choice loses up to {} (95th percentile).",
        ),
        (
            regret.prompt_length,
            f"If shared prefixes change by 8 to 32 tokens, this choice may lose up to {{}} (estimated).{margin}",
        ),
    )
    return [text.format(f"{lost:.1%}") for lost, text in causes if lost > WORTH_SAYING]
