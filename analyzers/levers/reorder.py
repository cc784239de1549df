"""Lever: move what varies behind what stays the same.

A date, an id or a counter ahead of stable text makes all of that text new for every other value. Detected where
prompts part, and meet again within 512 tokens; replayed with the varying span at each prompt's end. Spans are moved
one after another, each found in the trace that the one before left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvtune.analyzers.levers.edits import FILLER, with_prompts
from kvtune.analyzers.levers.spans import VaryingSpan, find_varying_span
from kvtune.analyzers.levers.trial import Baseline, Found, Gain, gain_of, measure
from kvtune.analyzers.levers.wording import Wording
from kvtune.analyzers.report import Lever
from kvtune.tokenization.trace import TokenTrace, UInt32

MOST_SPANS = 4
_WORTH = 0.001
_CLOSE = 16
_DAYS = 1 << 20


@dataclass(frozen=True)
class _Step:
    """A span, its class, and the trace that it was found in."""

    span: VaryingSpan
    name: str
    trace: TokenTrace


def reorder(base: Baseline, wording: Wording) -> Found | None:
    """The gain of moving up to four varying spans to the end; None where that gains nothing."""
    floor = _WORTH * int(base.trace.prompt_tokens.sum())
    steps: list[_Step] = []
    best: tuple[Gain, int] | None = None
    world = base
    while len(steps) < MOST_SPANS:
        span = find_varying_span(world.trace, world.shared)
        # Of two spans close together the first alone brings little: what stands behind both is not in its run.
        if span is None or _CLOSE * span.lost < floor:
            break
        steps.append(_Step(span, _class_of(world.trace, span, wording), world.trace))
        world = _replayed(base, _moved(world.trace, span))
        gain = gain_of(base, world, np.arange(len(base.trace), dtype=np.int64))
        if gain.tokens >= (0 if best is None else best[0].tokens) + floor:
            best = gain, len(steps)
    if best is None:
        return None
    gain, count = best
    return Found(_lever(base, gain, steps[:count], wording), gain)


def _replayed(base: Baseline, prompts: list[UInt32]) -> Baseline:
    changed = with_prompts(base.trace, prompts)
    return measure(changed, base.config, base.options, replica=base.replica, sessions=base.sessions)


def _class_of(trace: TokenTrace, span: VaryingSpan, wording: Wording) -> str:
    places = zip(span.members.tolist(), span.ends.tolist(), strict=True)
    return wording.class_of([(trace.prompt(request), span.start, end) for request, end in places])


def _moved(trace: TokenTrace, span: VaryingSpan) -> list[UInt32]:
    """All prompts, with the span of its members at their end."""
    prompts = [trace.prompt(request) for request in range(len(trace))]
    for request, end in zip(span.members.tolist(), span.ends.tolist(), strict=True):
        prompt = prompts[request]
        prompts[request] = np.concatenate((prompt[: span.start], prompt[end:], prompt[span.start : end]))
    return prompts


def _by_day(base: Baseline, span: VaryingSpan) -> int | None:
    """What it would bring to write the day only, where the span stands; None where requests have no times."""
    if np.isnan(base.trace.arrival).any():
        return None
    day = (base.trace.arrival // 86_400).astype(np.int64)
    prompts = [base.trace.prompt(request) for request in range(len(base.trace))]
    for request, end in zip(span.members.tolist(), span.ends.tolist(), strict=True):
        prompt = prompts[request].copy()
        prompt[span.start : end] = FILLER - np.uint32(day[request] % _DAYS)
        prompts[request] = prompt
    return gain_of(base, _replayed(base, prompts), np.arange(len(base.trace), dtype=np.int64)).tokens


def _lever(base: Baseline, gain: Gain, steps: list[_Step], wording: Wording) -> Lever:
    listed = " and ".join(dict.fromkeys(step.name for step in steps))
    span, name, trace = steps[0].span, steps[0].name, steps[0].trace
    example = trace.prompt(int(span.members[0]))[span.start : int(span.ends[0])]
    evidence = [
        f"{_article(name)} at token {span.start:,}{wording.quote(example)} takes {distinct(trace, span):,} values in "
        f"{len(span.members):,} requests, and about {span.run:,} tokens that they have in common stand behind it"
    ]
    evidence += [
        f"{_article(step.name)} at token {step.span.start:,}, once that is moved" for step in steps[1:]
    ]
    by_day = _by_day(base, span) if "time" in name and len(steps) == 1 else None
    if by_day is not None:
        evidence.append(f"left where it is and written to the day only, it would bring {by_day:,} tokens")
    return Lever(
        kind="reorder",
        title=f"Move the varying {listed} to the end of the prompt",
        what=(
            f"Move what varies ({listed}) from token {span.start:,} to the end of the prompt, behind the text that "
            "prompts have in common."
        ),
        gain_tokens=gain.tokens,
        gain_ci95=gain.interval,
        change=f"write the {listed} into the last user message, or behind the tools and examples",
        cost="none in tokens; the model reads it in another place, so look at its answers once",
        evidence="; ".join(evidence),
        limits="not where the model must read it before what follows",
    )


def distinct(trace: TokenTrace, span: VaryingSpan) -> int:
    """How many values the span takes."""
    return len(
        {
            trace.prompt(request)[span.start : end].tobytes()
            for request, end in zip(span.members.tolist(), span.ends.tolist(), strict=True)
        }
    )


def _article(name: str) -> str:
    return name if name in ("text", "white space") else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
