"""Predicted hits against measured ones: how many agree, where they first part, and which rule that breaks.

    all equal                    the server does what its release's profile says
    parted, impossible hit       a law of every release is broken: cap, grid, or a prefix that nobody sent before
    parted, another setting fits the server does what another unit, release or retention would do, and which

Knows predictions and measurements; not how they came about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.profiles import PROFILES, profile_for
from kvtune.analyzers.refusal import EngineRefusal
from kvtune.analyzers.resolver import resolve_sizes
from kvtune.analyzers.units import unit_candidates
from kvtune.gpu_probe.live.prediction import Prediction, Predictor, modelled
from kvtune.tokenization.trace import Int64, TokenTrace


@dataclass(frozen=True)
class Difference:
    """The first request whose hit was not the predicted one. Tokens."""

    request: int
    id: str
    prompt_tokens: int
    predicted: int
    measured: int


@dataclass(frozen=True)
class Comparison:
    """One candidate's run against its prediction.

    Attributes:
        requests: compared (refused ones are left out). equal: of them, predicted exactly.
        first: the first difference. rule: what it says, in words; None where all are equal.
        tolerated: differences do not speak against the server (open loop: hits depend on its speed).
    """

    requests: int
    equal: int
    first: Difference | None
    rule: str | None
    tolerated: bool = False

    @property
    def exact(self) -> bool:
        return self.equal == self.requests

    @property
    def agrees(self) -> bool:
        return self.exact or self.tolerated


def compare(
    predictor: Predictor,
    config: EngineConfig,
    prediction: Prediction,
    measured: Int64,
    *,
    timing_decides: bool = False,
) -> Comparison:
    """Compare a run, request by request.

    Args:
        measured: int64[R].
        timing_decides: requests overlapped, so that hits depend on what had finished when: only impossible ones
            speak against the server.
    """
    trace = predictor.trace
    parted = np.flatnonzero(prediction.hits != measured)
    requests = len(measured)
    if not len(parted):
        return Comparison(requests, requests, None, None)
    first = int(parted[0])
    difference = Difference(
        first,
        trace.ids[first],
        int(trace.prompt_tokens[first]),
        int(prediction.hits[first]),
        int(measured[first]),
    )
    equal = requests - len(parted)
    rule = broken_law(trace, prediction, measured)
    if rule is None and timing_decides:
        rule = "no hit is impossible; which ones happen depends on the server's speed"
        return Comparison(requests, equal, difference, rule, tolerated=True)
    if rule is None:
        rule = explained_by(predictor, config, measured) or _unexplained(prediction, measured)
    return Comparison(requests, equal, difference, rule)


def broken_law(trace: TokenTrace, prediction: Prediction, measured: Int64) -> str | None:
    """The law of every release that a measured hit breaks, whatever was running when; None where all are possible."""
    grid = prediction.result.sizes.cache_hit_alignment
    laws = (
        (
            measured >= trace.prompt_tokens,
            "the last token of a prompt is always computed, so a hit ends before it",
        ),
        (
            measured > prediction.shared,
            "a hit is no longer than the prefix shared with anything sent before: the cache was not empty, "
            "or somebody else is using this server",
        ),
        (
            (measured > 0) & (measured % grid != 0),
            f"hits land on multiples of {grid}: another match unit, or another engine, answers",
        ),
    )
    for breaks, law in laws:
        if breaks.any():
            first = int(np.flatnonzero(breaks)[0])
            return f"{law} (request {trace.ids[first]}: {int(measured[first])} tokens)"
    return None


def explained_by(predictor: Predictor, config: EngineConfig, measured: Int64) -> str | None:
    """The other setting whose prediction is right on every request, nearest settings first."""
    if not measured.any():
        return "nothing hit at all: prefix caching is off, or something empties the cache"
    for what, other in _other_settings(config):
        try:
            hits = predictor.predict(other).hits
        except EngineRefusal:
            continue
        if np.array_equal(hits, measured):
            return f"every request hits what {what} would give"
    return None


def _other_settings(config: EngineConfig) -> Iterator[tuple[str, EngineConfig]]:
    """One setting changed at a time."""
    profile = profile_for(config.version).profile
    if config.match_unit is not None:
        yield "an unset match unit (the flag has no effect)", replace(config, match_unit=None)
    for candidate in unit_candidates(config, profile, None):
        if (
            candidate.valid
            and candidate.effective_unit == candidate.unit
            and candidate.unit != config.match_unit
        ):
            yield f"match unit {candidate.unit}", replace(config, match_unit=candidate.unit)
    for name, other in PROFILES.items():
        if other is not profile:
            yield f"the rules of vLLM {name}", replace(config, version=other.version)
    yield "keeping every state (retention interval none)", replace(config, retention_interval=None)
    yield "an unlimited pool (nothing is evicted)", replace(config, num_blocks=None)


def _unexplained(prediction: Prediction, measured: Int64) -> str:
    less = int((measured < prediction.hits).sum())
    more = int((measured > prediction.hits).sum())
    step = int(np.gcd.reduce(measured))
    return (
        f"no single other setting explains it: {less} requests hit less than predicted, {more} more, all of them "
        f"multiples of {step} tokens; please report this with the server's start-up log"
    )


def effective_unit(config: EngineConfig) -> int:
    """The grid that hits land on under these settings."""
    return resolve_sizes(modelled(config), profile_for(config.version).profile).cache_hit_alignment


def sentence(comparison: Comparison, name: str) -> str:
    """One candidate's comparison in words, for the report's differences."""
    first = comparison.first
    if first is None:
        return f"{name}: all {comparison.requests:,} requests hit what was predicted"
    return (
        f"{name}: {comparison.equal:,} of {comparison.requests:,} requests hit what was predicted; the first that did "
        f"not is {first.id} ({first.prompt_tokens:,} tokens: predicted {first.predicted:,}, "
        f"measured {first.measured:,}); {comparison.rule}"
    )


def distinct_units(config: EngineConfig, units: Sequence[int | None]) -> list[int | None]:
    """The first unit of each grid: one start per grid is enough."""
    by_grid: dict[int, int | None] = {}
    for unit in units:
        by_grid.setdefault(effective_unit(replace(config, match_unit=unit)), unit)
    return list(by_grid.values())


def unit_name(unit: int | None) -> str:
    """A unit as it is given to a server: its number, or `unset`."""
    return "unset" if unit is None else str(unit)


def palindromic(units: Sequence[int | None], runs: int) -> list[int | None]:
    """The order of starts: there and back again (ABBA), so that a drift of the machine favours nobody."""
    order: list[int | None] = []
    for run in range(runs):
        order += units if run % 2 == 0 else reversed(units)
    return order
