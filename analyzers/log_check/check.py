"""Both comparisons, and what they mean for the advice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvtune.analyzers.decision.choice import Cap
from kvtune.analyzers.log_check.cached import CachedTokens, cached_causes
from kvtune.analyzers.log_check.info import (
    CachedTokensCheck,
    Difference,
    LogCause,
    LogCheck,
    PromptTokensCheck,
)
from kvtune.analyzers.log_check.lengths import length_cause
from kvtune.analyzers.log_check.trials import Trials
from kvtune.tokenization.trace import Bool, Int32, Int64, TokenTrace

MOST_DIFFERING = 0.05
"""Share of the compared requests that may have other prompt lengths in the log; beyond it no unit is advised."""

FEW_AGREE = 0.5
"""Below this share of agreeing hits the confidence is low."""


@dataclass(frozen=True)
class LogChecked:
    """The comparison, and what follows from it.

    Attributes:
        info: for the report.
        caps: what differences leave of the confidence; one that `decides` where prompts were misread.
    """

    info: LogCheck
    caps: tuple[Cap, ...] = ()


def check_log(
    trace: TokenTrace,
    predicted: Int64,
    *,
    shared: Int64,
    sessions: Int32,
    alignment: int,
    trials: Trials | None = None,
) -> LogChecked | None:
    """Compare with what the log says; None where it says nothing.

    Args:
        predicted: int64[R], the replay's hits with the current unit.
        shared: int64[R], longest prefixes shared with earlier prompts.
        alignment: what hits are multiples of.
        trials: other servers to try where hits differ; None tries none.
    """
    lengths, differs = _lengths(trace)
    cached = _cached(trace, predicted, shared, alignment, differs)
    if lengths is None and cached is None:
        return None
    causes: list[LogCause] = []
    if differs.any():
        causes.append(length_cause(trace, _compared(trace), differs, sessions))
    hits = None
    if cached is not None:
        hits = _summary(trace, cached)
        if hits.agree < hits.compared:
            causes += cached_causes(cached, trials)
    info = LogCheck(prompt_tokens=lengths, cached_tokens=hits, causes=tuple(causes))
    return _judged(info)


def _compared(trace: TokenTrace) -> Bool:
    logged = trace.logged_prompt_tokens
    compared = np.zeros(len(trace), dtype=bool) if logged is None else logged >= 0
    return compared if trace.trusted_lengths is None else compared & ~trace.trusted_lengths


def _lengths(trace: TokenTrace) -> tuple[PromptTokensCheck | None, Bool]:
    compared = _compared(trace)
    logged = trace.logged_prompt_tokens
    if logged is None or not compared.any():
        return None, np.zeros(len(trace), dtype=bool)
    differs = compared & (logged != trace.prompt_tokens)
    ratios = logged[compared] / trace.prompt_tokens[compared]
    return (
        PromptTokensCheck(
            compared=int(compared.sum()),
            agree=int((compared & ~differs).sum()),
            median_ratio=float(np.median(ratios)),
            first_difference=_first(trace, differs, logged, trace.prompt_tokens),
        ),
        differs,
    )


def _cached(
    trace: TokenTrace, predicted: Int64, shared: Int64, alignment: int, differs: Bool
) -> CachedTokens | None:
    """Requests whose prompts are read as the server saw them, as far as anybody knows."""
    logged = trace.logged_cached_tokens
    if logged is None or not (logged >= 0).any():
        return None
    if not (logged == 0).any() and trace.logged_prompt_tokens is not None:
        # Releases that write no zero leave the field out instead.
        logged = np.where((logged < 0) & (trace.logged_prompt_tokens >= 0), 0, logged)
    compared = (logged >= 0) & ~differs
    return CachedTokens(logged, predicted, compared, shared, alignment) if compared.any() else None


def _summary(trace: TokenTrace, cached: CachedTokens) -> CachedTokensCheck:
    return CachedTokensCheck(
        compared=int(cached.compared.sum()),
        agree=int((cached.compared & ~cached.differs).sum()),
        logged=int(cached.logged[cached.compared].sum()),
        predicted=int(cached.predicted[cached.compared].sum()),
        first_difference=_first(trace, cached.differs, cached.logged, cached.predicted),
    )


def _first(trace: TokenTrace, differs: Bool, logged: Int64, counted: Int64) -> Difference | None:
    if not differs.any():
        return None
    place = int(differs.argmax())
    return Difference(id=trace.ids[place], logged=int(logged[place]), counted=int(counted[place]))


def _judged(info: LogCheck) -> LogChecked:
    lengths, hits = info.prompt_tokens, info.cached_tokens
    if lengths is not None and lengths.agree < lengths.compared:
        text = (
            f"{lengths.compared - lengths.agree:,} of {lengths.compared:,} requests have another prompt length in the "
            f"log. {info.causes[0].text}"
        )
        if lengths.compared - lengths.agree > MOST_DIFFERING * lengths.compared:
            return LogChecked(info, (Cap("low", text, decides=True),))
        return LogChecked(info, (Cap("medium", text),))
    if hits is not None and hits.agree < hits.compared:
        text = (
            f"{hits.compared - hits.agree:,} of {hits.compared:,} requests have other cached tokens in the log "
            f"({hits.logged:,} in all, {hits.predicted:,} predicted). {info.causes[0].text}"
        )
        return LogChecked(info, (Cap("low" if hits.agree < FEW_AGREE * hits.compared else "medium", text),))
    return LogChecked(info)
