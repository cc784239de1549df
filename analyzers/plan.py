"""The plan: what to do, in order, what happens if only the first step is done, and how to go back.

The match unit leads where another one pays. Where none does, the best proven optimization leads; it may come with a
match unit of its own. Headline, flags, chart mark, `recommendation` and `plan` all follow this one plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from kvtune.analyzers.decision import Choice
from kvtune.analyzers.report import Lever, PlanStep, Recommendation
from kvtune.analyzers.why import Setting

UNIT_FLAG = "--prefix-match-unit"

_SERVER_KINDS = ("retention", "shared_prefix_checkpoint", "pool_size", "dtype", "routing", "isolation")


def leading_lever(choice: Choice, levers: Sequence[Lever]) -> Lever | None:
    """The optimization that is the one thing to do, as no match unit pays; None where a unit does, where none is
    proven, or where the log decides nothing."""
    if choice.action in ("set", "unset") or choice.undecidable:
        return None
    return next(
        (lever for lever in levers if lever.is_proven and lever.title and lever.kind != "combination"), None
    )


def unit_of(lever: Lever) -> int | None:
    """The match unit that an optimization comes with; None where it comes with none."""
    for flag in lever.flags or ():
        name, _, value = flag.partition(" ")
        if name == UNIT_FLAG and value.isdigit():
            return int(value)
    return None


def plan_of(
    choice: Choice, setting: Setting, lever: Lever | None, gains: Mapping[int, int]
) -> tuple[PlanStep, ...]:
    """The steps, in order; empty where nothing changes.

    Args:
        lever: the leading one, if any. gains: net tokens over the current unit, of each match unit by itself.
    """
    if lever is None:
        if choice.action == "set":
            return (_set(choice.unit, setting, None),)
        return (_unset(setting),) if choice.action == "unset" else ()
    kind: Literal["warm_up", "edit", "server"] = (
        "warm_up" if lever.kind == "prime" else "server" if lever.kind in _SERVER_KINDS else "edit"
    )
    unit = unit_of(lever)
    others = tuple(flag for flag in lever.flags or () if not flag.startswith(UNIT_FLAG))
    step = PlanStep(
        kind=kind, flags=others or None, text=" ".join(filter(None, (lever.what, _change(lever))))
    )
    if unit is None:
        return (step,)
    return _set(unit, setting, _alone(unit, gains)), step


def follow_lever(advice: Recommendation, lever: Lever, setting: Setting) -> Recommendation:
    """The recommendation whose gain, flags and unit are those of the plan that an optimization leads. It is never of
    high confidence: what it can lose was not tried."""
    unit = unit_of(lever)
    return msgspec.structs.replace(
        advice,
        action=advice.action if unit is None else "set",
        unit=advice.unit if unit is None else unit,
        flags=lever.flags or (),
        gain_tokens=lever.gain_tokens,
        gain_fraction=lever.gain_tokens / int(setting.prompt_tokens.sum()),
        gain_ci95=lever.gain_ci95,
        net_gain_tokens=lever.gain_tokens,
        confidence="medium" if advice.confidence == "high" else advice.confidence,
        why="No other match unit pays by itself. This optimization does: the changed trace was replayed.",
        regret=None,
        margin_tokens=None,
    )


def _set(unit: int, setting: Setting, alone: str | None) -> PlanStep:
    before = (
        "drop the flag"
        if setting.current_unit == setting.default_unit
        else f"set {UNIT_FLAG} {setting.current_unit}"
    )
    flag = f"{UNIT_FLAG} {unit}"
    return PlanStep(
        kind="flag",
        flags=(flag,),
        text=f"Add {flag} to the serve command and restart. To go back, {before} and restart: nothing else changes.",
        if_only_this=alone,
    )


def _unset(setting: Setting) -> PlanStep:
    return PlanStep(
        kind="flag",
        flags=(),
        text=f"Drop {UNIT_FLAG} from the serve command and restart. To go back, set "
        f"{UNIT_FLAG} {setting.current_unit} and restart: nothing else changes.",
    )


def _alone(unit: int, gains: Mapping[int, int]) -> str:
    if unit not in gains:
        return f"Match unit {unit:,} alone was not replayed: do not stop here."
    gain = gains[unit]
    verb = "gains" if gain > 0 else "loses"
    warning = "" if gain > 0 else ": do not stop here"
    return f"Match unit {unit:,} alone {verb} {abs(gain):,} tokens net{warning}."


def _change(lever: Lever) -> str:
    return f"Change: {lever.change}." if lever.change else ""
