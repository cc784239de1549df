"""What moved between two reports: another trace, another release or other settings of one server.

Rates are fractions of each report's own prompt tokens, so that traces of different length can be compared. Knows
reports; neither files nor how a comparison is shown.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec

from kvtune.analyzers.loss_kinds import LOSSES
from kvtune.analyzers.report import GroupInfo, Lever, Losses, Report

SCHEMA: Literal["kvtune.compare/1"] = "kvtune.compare/1"


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two reports. Hits are with the current unit, `best_` with the recommended one; `settings` are what
    beside the unit and the traffic decides the figures, in words.
    """

    command: str
    trace_sha256: str
    engine_version: str
    requests: int
    prompt_tokens: int
    shared_tokens: int
    current_unit: int
    hit_tokens: int
    token_hit_rate: float
    recommended_unit: int
    best_hit_tokens: int
    best_token_hit_rate: float
    settings: dict[str, str]


class LossChange(msgspec.Struct, frozen=True, kw_only=True):
    """One limit's share of the prompt tokens, with the current unit."""

    limit: str
    base_rate: float
    new_rate: float


class FamilyChange(msgspec.Struct, frozen=True, kw_only=True):
    """The token hit rate of a family with the current unit; None on the side that lacks it."""

    name: str
    base_token_hit_rate: float | None
    new_token_hit_rate: float | None


class LeverChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a lever would recover, in tokens; None on the side that lacks it."""

    kind: str
    what: str
    base_gain_tokens: int | None
    new_gain_tokens: int | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """`worse_fraction`: how much of the base's token hit rate is lost (negative: gained)."""

    schema: Literal["kvtune.compare/1"] = SCHEMA
    base: Side
    new: Side
    same_trace: bool
    worse_fraction: float
    losses: tuple[LossChange, ...]
    families: tuple[FamilyChange, ...]
    levers: tuple[LeverChange, ...]


def compare_reports(base: Report, new: Report) -> Comparison:
    """Set two reports side by side."""
    sides = _side(base), _side(new)
    before, after = sides[0].token_hit_rate, sides[1].token_hit_rate
    return Comparison(
        base=sides[0],
        new=sides[1],
        same_trace=base.trace.sha256 == new.trace.sha256,
        worse_fraction=(before - after) / before if before else 0.0,
        losses=tuple(
            LossChange(limit=name, base_rate=_lost(base, name), new_rate=_lost(new, name)) for name in LOSSES
        ),
        families=_families(base, new),
        levers=_levers(base, new),
    )


def _side(report: Report) -> Side:
    prompt_tokens = report.trace.prompt_tokens

    def rate(losses: Losses) -> float:
        return losses.hit_tokens / prompt_tokens if prompt_tokens else 0.0

    current, recommended = report.losses.current, report.losses.recommended
    return Side(
        command=report.command,
        trace_sha256=report.trace.sha256,
        engine_version=report.engine.version,
        requests=report.trace.requests,
        prompt_tokens=prompt_tokens,
        shared_tokens=report.shared.tokens,
        current_unit=report.recommendation.current_unit,
        hit_tokens=current.hit_tokens,
        token_hit_rate=rate(current),
        recommended_unit=report.recommendation.unit,
        best_hit_tokens=recommended.hit_tokens,
        best_token_hit_rate=rate(recommended),
        settings=_settings(report),
    )


def _settings(report: Report) -> dict[str, str]:
    """What beside the unit and the traffic decides the figures, in words."""
    engine, replay = report.engine, report.replay
    return {
        "groups": ", ".join(_group(group) for group in engine.groups),
        "prefix caching": "on" if engine.enable_prefix_caching else "off",
        "pool": "unlimited" if engine.num_blocks is None else f"{engine.num_blocks:,} blocks",
        "tokens a step": f"{engine.max_num_batched_tokens:,}",
        "arrivals": replay.arrivals,
        "outputs": replay.outputs,
        "step cost": f"{replay.step_cost_tokens:,} tokens",
    }


def _group(group: GroupInfo) -> str:
    window = "" if group.window is None else f" window {group.window:,}"
    count = "" if group.count == 1 else f" × {group.count}"
    return f"{group.kind} {group.block_size:,}{window}{count}"


def _lost(report: Report, limit: str) -> float:
    lost: int = getattr(report.losses.current, limit)
    return lost / report.trace.prompt_tokens if report.trace.prompt_tokens else 0.0


def _families(base: Report, new: Report) -> tuple[FamilyChange, ...]:
    rates = [_family_rates(report) for report in (base, new)]
    weight = {family.name: family.prompt_tokens for report in (new, base) for family in report.families}
    return tuple(
        FamilyChange(name=name, base_token_hit_rate=rates[0].get(name), new_token_hit_rate=rates[1].get(name))
        for name in sorted(weight, key=lambda name: (-weight[name], name))
    )


def _family_rates(report: Report) -> dict[str, float]:
    unit = report.recommendation.current_unit
    return {
        family.name: family.engine_hit_tokens[unit] / family.prompt_tokens
        for family in report.families
        if unit in family.engine_hit_tokens and family.prompt_tokens
    }


def _levers(base: Report, new: Report) -> tuple[LeverChange, ...]:
    """Levers of one kind meet by their rank: their wording names counts, which differ from trace to trace."""
    before, after = _by_rank(base), _by_rank(new)
    changes = []
    for key in dict.fromkeys([*after, *before]):
        old, lever = before.get(key), after.get(key)
        shown = lever or old
        assert shown is not None
        changes.append(
            LeverChange(
                kind=shown.kind,
                what=shown.what,
                base_gain_tokens=None if old is None else old.gain_tokens,
                new_gain_tokens=None if lever is None else lever.gain_tokens,
            )
        )
    return tuple(changes)


def _by_rank(report: Report) -> dict[tuple[str, int], Lever]:
    ranks: Counter[str] = Counter()
    found = {}
    for lever in report.levers:
        found[lever.kind, ranks[lever.kind]] = lever
        ranks[lever.kind] += 1
    return found
