"""Lever: move what varies behind what stays the same.

A date, an id or a counter ahead of stable text makes all of that text new for every other value. Detected where
prompts part, and meet again within 512 tokens; replayed with the varying span at each prompt's end. Spans are moved
one after another, each found in the trace that the one before left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvtune.analyzers.levers.edits import FILLER, with_prompts
from kvtune.analyzers.levers.joint import Pair, on_best_unit
from kvtune.analyzers.levers.spans import VaryingSpan, find_varying_span
from kvtune.analyzers.levers.trial import Baseline, Found, Gain, gain_of, measure
from kvtune.analyzers.levers.wording import Wording
from kvtune.analyzers.report import Lever
from kvtune.tokenization.encoding.buffer import SpillingArrays
from kvtune.tokenization.trace import TokenTrace, UInt32

MOST_SPANS = 4
_WORTH = 0.001
_CLOSE = 16
_DAYS = 1 << 20


@dataclass(frozen=True)
class _Step:
    """A span, and the trace that it was found in."""

    span: VaryingSpan
    trace: TokenTrace

    def fields(self, wording: Wording) -> tuple[str, ...]:
        """The classes of its fields, in their order."""
        places = zip(self.span.members.tolist(), self.span.ends.tolist(), strict=True)
        return wording.fields_of(
            [(self.trace.prompt(request), self.span.start, end) for request, end in places]
        )


def reorder(base: Baseline, wording: Wording, least: float | None = None) -> Found | None:
    """The gain of moving up to four varying spans to the end; None where that gains nothing.

    Args:
        least: tokens that a span must bring; a thousandth of the prompt tokens where not given.
    """
    floor = _WORTH * int(base.trace.prompt_tokens.sum()) if least is None else least
    steps: list[_Step] = []
    best: tuple[Pair, int] | None = None
    world = base
    while len(steps) < MOST_SPANS:
        span = find_varying_span(world.trace, world.shared)
        # Of two spans close together the first alone brings little: what stands behind both is not in its run.
        if span is None or _CLOSE * span.lost < floor:
            break
        steps.append(_Step(span, world.trace))
        world = _replayed(base, _moved(world.trace, span))
        pair = on_best_unit(base, gain_of(base, world, np.arange(len(base.trace), dtype=np.int64)))
        if pair.gain.tokens >= (0 if best is None else best[0].gain.tokens) + floor:
            best = pair, len(steps)
    if best is None:
        return None
    pair, count = best
    return pair.found(_lever(base, pair.gain, steps[:count], wording))


def _replayed(base: Baseline, prompts: list[UInt32]) -> Baseline:
    changed = with_prompts(base.trace, prompts)
    return measure(changed, base.config, base.options, replica=base.replica, sessions=base.sessions)


def listed(fields: Sequence[str]) -> str:
    """Names of fields with their numbers, each once, in their order."""
    counts = Counter(fields)
    return ", ".join(
        name if number == 1 or name == "text" else f"{number} {name}s" for name, number in counts.items()
    )


def _rewritten(
    trace: TokenTrace, span: VaryingSpan, edit: Callable[[int, UInt32, int], UInt32]
) -> list[UInt32]:
    """All prompts, those of the span's members as `edit` of (request, prompt, end of the span) gives them."""
    prompts = [trace.prompt(request) for request in range(len(trace))]
    changed = SpillingArrays()
    for request, end in zip(span.members.tolist(), span.ends.tolist(), strict=True):
        prompts[request] = changed.keep(edit(request, prompts[request], end))
    return prompts


def _moved(trace: TokenTrace, span: VaryingSpan) -> list[UInt32]:
    """All prompts, with the span of its members at their end."""

    def edit(_request: int, prompt: UInt32, end: int) -> UInt32:
        return np.concatenate((prompt[: span.start], prompt[end:], prompt[span.start : end]))

    return _rewritten(trace, span, edit)


def _behind_the_run(base: Baseline, span: VaryingSpan) -> list[str]:
    """What it brings to write the span right behind the text that follows it, ahead of what else prompts share."""

    def edit(_request: int, prompt: UInt32, end: int) -> UInt32:
        behind = min(end + span.run, len(prompt))
        return np.concatenate(
            (prompt[: span.start], prompt[end:behind], prompt[span.start : end], prompt[behind:])
        )

    world = _replayed(base, _rewritten(base.trace, span, edit))
    pair = on_best_unit(base, gain_of(base, world, np.arange(len(base.trace), dtype=np.int64)))
    if pair.gain.tokens <= 0:
        return []
    unit = "" if not pair.changes_unit or pair.unit is None else f" and --prefix-match-unit {pair.unit}"
    return [f"right behind that text{unit}, it would bring {pair.gain.tokens:,} tokens"]


def _by_day(base: Baseline, span: VaryingSpan) -> int | None:
    """What it would bring to write the day only, where the span stands; None where requests have no times."""
    if np.isnan(base.trace.arrival).any():
        return None
    day = (base.trace.arrival // 86_400).astype(np.int64)

    def edit(request: int, prompt: UInt32, end: int) -> UInt32:
        dated = prompt.copy()
        dated[span.start : end] = FILLER - np.uint32(day[request] % _DAYS)
        return dated

    prompts = _rewritten(base.trace, span, edit)
    return gain_of(base, _replayed(base, prompts), np.arange(len(base.trace), dtype=np.int64)).tokens


def _lever(base: Baseline, gain: Gain, steps: list[_Step], wording: Wording) -> Lever:
    by_step = [step.fields(wording) for step in steps]
    fields = listed([field for fields in by_step for field in fields])
    span, name, trace = steps[0].span, listed(by_step[0]), steps[0].trace
    one, other = _two_values(trace, span)
    evidence = [
        f"{_article(name)} at token {span.start:,}{wording.quote_both(one, other)} takes "
        f"{distinct(trace, span):,} values in {len(span.members):,} requests, and about {span.run:,} "
        "tokens that they have in common stand behind it"
    ]
    evidence += [
        f"{_article(listed(fields))} at token {step.span.start:,}, once that is moved"
        for step, fields in zip(steps[1:], by_step[1:], strict=True)
    ]
    if len(steps) == 1:
        evidence += _behind_the_run(base, span)
    by_day = (
        _by_day(base, span) if by_step[0] in (("time",), ("date and time",)) and len(steps) == 1 else None
    )
    if by_day is not None:
        evidence.append(f"left where it is and written to the day only, it would bring {by_day:,} tokens")
    return Lever(
        kind="reorder",
        title=f"Move the varying {fields} to the end of the prompt",
        what=(
            f"Move what varies ({fields}) from token {span.start:,} to the end of the prompt, behind the text that "
            "prompts have in common."
        ),
        gain_tokens=gain.tokens,
        gain_ci95=gain.interval,
        change=f"write the {fields} into the last user message, or behind the tools and examples",
        cost="none in tokens; the model reads it in another place, so look at its answers once",
        evidence="; ".join(evidence),
        limits="not where the model must read it before what follows",
    )


def _two_values(trace: TokenTrace, span: VaryingSpan) -> tuple[UInt32, UInt32]:
    """The span in its first member, and in the first one where it is another."""
    values = [
        trace.prompt(request)[span.start : end]
        for request, end in zip(span.members.tolist(), span.ends.tolist(), strict=True)
    ]
    return values[0], next((value for value in values if not np.array_equal(value, values[0])), values[0])


def distinct(trace: TokenTrace, span: VaryingSpan) -> int:
    """How many values the span takes."""
    return len(
        {
            trace.prompt(request)[span.start : end].tobytes()
            for request, end in zip(span.members.tolist(), span.ends.tolist(), strict=True)
        }
    )


def _article(name: str) -> str:
    if "," in name or name[0].isdigit():
        return name
    return name if name in ("text", "white space") else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
