"""A candidate unit from its prediction to its row in the report.

Knows predictions, records and statistics; runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.validation import ValidatedCandidate
from kvtune.gpu_probe.engine.agreement import Predicted
from kvtune.gpu_probe.engine.measure import summarize, ttft
from kvtune.gpu_probe.engine.paired import MINIMUM_EFFECT, PairedEffect, holm, paired_effect
from kvtune.gpu_probe.engine.runner import RunRecord
from kvtune.gpu_probe.rate_search import RateSearch


@dataclass
class Candidate:
    """One unit of one server.

    Attributes:
        config: how the server is started. unit: the grid that hits then land on.
        predicted: None where hits depend on measured time and cannot be predicted request by request.
        records: its runs, in order.
    """

    config: EngineConfig
    unit: int
    predicted: Predicted | None
    records: list[RunRecord] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"unit {self.unit}"


def rows(
    candidates: Sequence[Candidate],
    slo: Mapping[str, float],
    *,
    deterministic: bool,
    searches: Sequence[RateSearch] = (),
) -> list[ValidatedCandidate]:
    """The report's rows; changes of TTFT are against the first candidate, the current unit.

    `searches[i]`: of candidate i's largest rate; none where none was looked for.
    """
    base = candidates[0]
    effects: list[PairedEffect | None] = [None]
    for candidate in candidates[1:]:
        pairs = [(ttft(one), ttft(two)) for one, two in zip(base.records, candidate.records, strict=False)]
        effects.append(None if deterministic else paired_effect(pairs))
    known = [effect for effect in effects if effect is not None]
    beyond_chance = iter(holm([effect.p_value for effect in known]))
    out = []
    for place, (candidate, effect) in enumerate(zip(candidates, effects, strict=True)):
        predicted = None if candidate.predicted is None else int(candidate.predicted.hit_tokens.sum())
        row = summarize(
            candidate.unit, candidate.records, slo, predicted=predicted, deterministic=deterministic
        )
        if searches and searches[place].runs:
            found = searches[place]
            row = msgspec.structs.replace(row, largest_rate=found.met, missed_rate=found.missed)
        if effect is not None:
            differs = next(beyond_chance) and abs(effect.change) >= MINIMUM_EFFECT
            measured = effect.pairs >= 2 and math.isfinite(effect.low)
            row = msgspec.structs.replace(
                row,
                ttft_change=effect.change,
                ttft_change_ci95=(effect.low, effect.high) if measured else None,
                ttft_differs=differs if measured else None,
            )
        elif deterministic and candidate is not base:
            change = float(ttft(candidate.records[0]).mean() / ttft(base.records[0]).mean()) - 1
            row = msgspec.structs.replace(row, ttft_change=change)
        out.append(row)
    return out
