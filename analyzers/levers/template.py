"""Lever: render history as it was sent and generated before.

Templates drop reasoning of earlier turns, put an empty think block into the last turn only, or write arguments anew;
everything from the first difference on is computed again. Replayed with each continuation made of what was sent
before, its recorded answer, and what is new.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvtune.analyzers.levers.edits import with_answers, with_prompts
from kvtune.analyzers.levers.history import (
    Rewritten,
    answer_of,
    find_rewritten,
    rendered_answer,
    turns_before,
)
from kvtune.analyzers.levers.joint import with_best_unit
from kvtune.analyzers.levers.spans import common_prefix
from kvtune.analyzers.levers.trial import Baseline, Found, measure, try_change
from kvtune.analyzers.levers.wording import Wording
from kvtune.analyzers.report import Lever
from kvtune.tokenization.encoding.buffer import SpillingArrays
from kvtune.tokenization.trace import TokenTrace, UInt32

MOST_CAUSES = 3

_THINK = re.compile(
    r"<\|?/?(?:think|thinking|reasoning|seed:think)\|?>|\[/?THINK\]|<\|channel\|>analysis", re.IGNORECASE
)

_VARYING = ("date and time", "date", "time", "percentage", "number", "identifier")

_WAYS = {
    "reasoning dropped": "keep earlier reasoning in the template (preserve_thinking, clear_thinking=false or its like)",
    "empty think block": "write the empty think block into every assistant turn, not the last one only",
    "same text, other tokens": "send the generated token ids back instead of their text",
    "arguments written anew": "send tool-call arguments back as they were generated, byte for byte",
    "text dropped": "keep what was sent before in the history",
    "text added": "write it where it is new, not into earlier turns",
    "text rewritten": "repeat earlier turns as they were sent",
}


def template(base: Baseline, wording: Wording, units_from: float = 0) -> list[Found]:
    """One lever per cause of rewritten histories, at most three, and one for all causes where that brings more; none
    where none gains. Where answers are known they count as cached, before and after.

    Args:
        units_from: tokens from which the best one's match unit is searched.
    """
    answers = base.trace.outputs is not None
    other_base = answers and base.options.outputs != "recorded"
    if other_base:
        options = replace(base.options, outputs="recorded")
        base = measure(base.trace, base.config, options, replica=base.replica, sessions=base.sessions)
    found = find_rewritten(base.trace, base.shared, answers=answers)
    causes: dict[str, list[Rewritten]] = defaultdict(list)
    for rewritten in found:
        if rewritten.resumed is not None and not _varies_by_itself(base.trace, rewritten, wording):
            causes[cause_of(rewritten, wording)].append(rewritten)
    edited = sum(rewritten.resumed is None for rewritten in found)
    usual = sorted(causes.items(), key=lambda item: (-len(item[1]), item[0]))[:MOST_CAUSES]
    trials: list[tuple[tuple[str, ...], list[Rewritten]]] = [((cause,), ones) for cause, ones in usual]
    if len(usual) > 1:
        together = sorted((one for _, rewritten in usual for one in rewritten), key=lambda one: one.request)
        trials.append((tuple(cause for cause, _ in usual), together))
    levers = [
        _preserve(base, names, rewritten, edited, wording, answers=answers) for names, rewritten in trials
    ]
    if levers:
        best = max(range(len(levers)), key=lambda place: levers[place].gain.tokens)
        if levers[best].gain.tokens >= units_from:
            levers[best] = with_best_unit(base, levers[best])
        if len(levers) > 1 and best != len(levers) - 1:
            levers.pop()
    kept = [lever for lever in levers if lever.gain.tokens > 0]
    # Other levers do not count answers as cached, so none of them can be built upon these.
    return [replace(one, gain=replace(one.gain, after=None)) for one in kept] if other_base else kept


def _varies_by_itself(trace: TokenTrace, rewritten: Rewritten, wording: Wording) -> bool:
    """Whether the first difference is a date, a counter or the like, or stands before the history: not a template's."""
    at = rewritten.kept
    if trace.parts.part_of(rewritten.request, at) in ("system", "tools"):
        return True
    if wording.decode is None or not len(rewritten.removed) or not len(rewritten.added):
        return False
    return wording.class_of([(trace.prompt(rewritten.request), at, at + len(rewritten.added))]) in _VARYING


def cause_of(rewritten: Rewritten, wording: Wording) -> str:
    """A name for the first difference, from its text where that is at hand, else from its shape."""
    removed, added = wording.text(rewritten.removed), wording.text(rewritten.added)
    if removed is not None and added is not None:
        if removed == added:
            return "same text, other tokens"
        if _THINK.search(removed) or _THINK.search(added):
            longer = max(_THINK.sub("", removed), _THINK.sub("", added), key=len)
            return "reasoning dropped" if re.search(r"\w", longer) else "empty think block"
        if removed and added and _letters(removed) == _letters(added):
            return "arguments written anew"
    if not len(rewritten.added):
        return "text dropped"
    return "text rewritten" if len(rewritten.removed) else "text added"


def _letters(text: str) -> list[str]:
    """What is left of a text when its spacing, escapes and order do not count."""
    return sorted(re.findall(r"\w+", text))


def _preserve(
    base: Baseline,
    causes: tuple[str, ...],
    rewritten: list[Rewritten],
    edited: int,
    wording: Wording,
    *,
    answers: bool,
) -> Found:
    before = turns_before(base.trace, base.shared)
    changed = with_prompts(base.trace, _verbatim(base.trace, rewritten, before, answers=answers))
    if answers:
        changed = with_answers(changed, _answers(base.trace, rewritten))
    gain = try_change(base, trace=changed)
    first, cause = rewritten[0], " or ".join(filter(None, (", ".join(causes[:-1]), causes[-1])))
    evidence = (
        f"{cause} in {len(rewritten):,} of {len(base.trace):,} requests, first in {base.trace.ids[first.request]!r}, "
        f"which parts from {base.trace.ids[first.earlier]!r} at token {first.kept:,} of {_length(base, first):,}"
        f"{wording.quote(first.removed if len(first.removed) else first.added)}"
    )
    if edited:
        evidence += f"; {edited:,} more continue an edited history, which no template can undo"
    lever = Lever(
        kind="template",
        title=f"Keep history as it was sent and generated ({cause})",
        what=f"Render earlier turns as they were sent before: {cause} in {len(rewritten):,} continuations.",
        gain_tokens=gain.tokens,
        gain_ci95=gain.interval,
        change="; ".join(_WAYS[cause] for cause in causes),
        cost="longer prompts where text was dropped, already taken off the gain",
        evidence=evidence,
        limits="not where dropping it is wanted, to save context or because the model was trained so",
    )
    return Found(lever, gain)


def _answers(trace: TokenTrace, rewritten: list[Rewritten]) -> list[UInt32]:
    """All recorded answers. One whose ids nobody could tell, since its prompt is rendered otherwise with it than
    without, is what the next prompt shows of it: the very ids, once history is kept."""
    answers = [answer_of(trace, request) for request in range(len(trace))]
    for one in rewritten:
        if not len(answers[one.earlier]):
            answers[one.earlier] = rendered_answer(trace, one)
    return answers


def _length(base: Baseline, rewritten: Rewritten) -> int:
    return int(base.trace.prompt_tokens[rewritten.earlier])


def _verbatim(
    trace: TokenTrace, rewritten: list[Rewritten], before: Sequence[int], *, answers: bool
) -> list[UInt32]:
    """All prompts, with these continuations made of the earlier prompt as it now is, its answer, and what is new; later
    turns that repeat a changed prompt are made of it as it now is, too.

    Args:
        before: the request that each one continues, -1 where there is none.
    """
    prompts = [trace.prompt(request) for request in range(len(trace))]
    ways = {one.request: one for one in rewritten}
    changed: set[int] = set()
    arrays = SpillingArrays()
    for request, earlier in enumerate(before):
        prompt, one = prompts[request], ways.get(request)
        if one is not None:
            assert one.resumed is not None
            kept = [prompts[one.earlier], *([answer_of(trace, one.earlier)] if answers else [])]
            prompts[request] = arrays.keep(np.concatenate((*kept, prompt[one.resumed :])))
            changed.add(request)
        elif earlier in changed:
            length = int(trace.prompt_tokens[earlier])
            if common_prefix(prompt, trace.prompt(earlier)) == length:
                prompts[request] = arrays.keep(np.concatenate((prompts[earlier], prompt[length:])))
                changed.add(request)
    return prompts
