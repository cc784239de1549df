"""Lever: move what varies behind what stays the same.

A date, an id or a counter ahead of stable text makes all of that text new for every other value. Detected where
prompts part, and meet again within 512 tokens; replayed with the varying span at each prompt's end. Spans are moved
one after another, each found in the trace that the one before left.
"""

from __future__ import annotations

import numpy as np

from kvtune.analyzers.levers.edits import with_prompts
from kvtune.analyzers.levers.spans import VaryingSpan, find_varying_span
from kvtune.analyzers.levers.trial import Baseline, Found, Gain, gain_of, measure
from kvtune.analyzers.levers.wording import Wording
from kvtune.analyzers.report import Lever
from kvtune.tokenization.trace import TokenTrace, UInt32

MOST_SPANS = 4
_WORTH = 0.001


def reorder(base: Baseline, wording: Wording) -> Found | None:
    """The gain of moving up to four varying spans to the end; None where that gains nothing."""
    floor = _WORTH * int(base.trace.prompt_tokens.sum())
    moved: list[tuple[VaryingSpan, str, TokenTrace]] = []
    best: Gain | None = None
    world = base
    for _ in range(MOST_SPANS):
        span = find_varying_span(world.trace, world.shared)
        if span is None or span.lost < floor:
            break
        name = wording.class_of(
            [
                (world.trace.prompt(int(r)), span.start, int(end))
                for r, end in zip(span.members, span.ends, strict=True)
            ]
        )
        after = measure(
            with_prompts(world.trace, _moved(world.trace, span)),
            base.config,
            base.options,
            replica=base.replica,
            sessions=base.sessions,
        )
        gain = gain_of(base, after, np.arange(len(base.trace), dtype=np.int64))
        if gain.tokens < (0 if best is None else best.tokens) + floor:
            break
        moved.append((span, name, world.trace))
        best, world = gain, after
    if best is None:
        return None
    return Found(_lever(best, moved, wording), best)


def _moved(trace: TokenTrace, span: VaryingSpan) -> list[UInt32]:
    """All prompts, with the span of its members at their end."""
    prompts = [trace.prompt(request) for request in range(len(trace))]
    for request, end in zip(span.members.tolist(), span.ends.tolist(), strict=True):
        prompt = prompts[request]
        prompts[request] = np.concatenate((prompt[: span.start], prompt[end:], prompt[span.start : end]))
    return prompts


def _lever(gain: Gain, moved: list[tuple[VaryingSpan, str, TokenTrace]], wording: Wording) -> Lever:
    names = list(dict.fromkeys(name for _, name, _ in moved))
    listed = " and ".join(names)
    span, name, trace = moved[0]
    example = trace.prompt(int(span.members[0]))[span.start : int(span.ends[0])]
    evidence = [
        f"{_article(name)} at token {span.start:,}{wording.quote(example)} takes {distinct(trace, span):,} values in "
        f"{len(span.members):,} requests, and about {span.run:,} tokens that they have in common stand behind it"
    ]
    evidence += [
        f"{_article(name)} at token {more.start:,}, once that is moved" for more, name, _ in moved[1:]
    ]
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
