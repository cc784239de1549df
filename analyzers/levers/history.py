"""Whether a conversation's next prompt repeats what was sent and generated before it, and where it does not.

    sent before     [ head ][ turn 1 ][ <think> ... ][ turn 2 ][ generation prompt ]
    next prompt     [ head ][ turn 1 ][ turn 2 ][ answer ][ turn 3 ]
                                     ^ kept           ^ resumed: what is new begins here

Knows token ids, sessions and answers; no engine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvtune.analyzers.levers.spans import common_prefix, meet_again
from kvtune.analyzers.shared import SharedPrefixes
from kvtune.tokenization.trace import OnePart, TokenTrace, UInt32

_MOST_EDITS = 64
_SHORT_ANSWER = 8
_TAIL = 48
_TAIL_OF_UNNAMED = 8
"""Tokens at a prompt's end that may be missing in the next one: a generation prompt, an empty think block."""


@dataclass(frozen=True)
class Rewritten:
    """A request whose prompt does not repeat the earlier one's.

    Attributes:
        earlier: that request. kept: tokens that both begin with. removed, added: the first difference, as ids.
        resumed: where the prompt goes on with what is new; None where it cannot be told (text was edited).
    """

    request: int
    earlier: int
    kept: int
    removed: UInt32
    added: UInt32
    resumed: int | None


def find_rewritten(trace: TokenTrace, shared: SharedPrefixes, *, answers: bool) -> list[Rewritten]:
    """Requests of a conversation that do not extend the one before.

    Args:
        answers: whether the recorded answers must be repeated, too.
    """
    found = []
    for request, earlier in enumerate(turns_before(trace, shared)):
        if earlier < 0:
            continue
        named = trace.sessions is not None and trace.sessions[request] is not None
        rewritten = _compare(trace, request, earlier, answers=answers, named=named)
        if rewritten is not None and _goes_on(trace, rewritten):
            found.append(rewritten)
    return found


def turns_before(trace: TokenTrace, shared: SharedPrefixes) -> list[int]:
    """The request that each one continues; -1 where there is none.

    A conversation is named by the log; else a prompt continues the earlier one that it shares most of.
    """
    latest: dict[tuple[int, str], int] = {}
    before = []
    for request in range(len(trace)):
        name = trace.sessions[request] if trace.sessions is not None else None
        if name is not None:
            key = (int(trace.namespace[request]), name)
            before.append(latest.get(key, -1))
            latest[key] = request
            continue
        earlier = int(shared.shared_with[request])
        if earlier >= 0 and 2 * int(shared.shared[request]) < int(trace.prompt_tokens[earlier]):
            earlier = -1
        before.append(earlier)
    return before


def _goes_on(trace: TokenTrace, rewritten: Rewritten) -> bool:
    """Whether an answer stands between where the prompts part and where what is new begins, or soon after, as it does
    in a conversation; not known without parts."""
    if isinstance(trace.parts, OnePart) or rewritten.resumed is None:
        return True
    end = min(rewritten.resumed + _TAIL, int(trace.prompt_tokens[rewritten.request]))
    places = range(rewritten.kept, end)
    return any(trace.parts.part_of(rewritten.request, at) in ("assistant", "output") for at in places)


def sent_before(trace: TokenTrace, request: int, *, answers: bool) -> UInt32:
    """The prompt, and its answer where those count."""
    return (
        np.concatenate((trace.prompt(request), answer_of(trace, request)))
        if answers
        else trace.prompt(request)
    )


def answer_of(trace: TokenTrace, request: int) -> UInt32:
    """The recorded answer's ids, none where none are known."""
    if trace.outputs is None or trace.output_offsets is None:
        return np.zeros(0, dtype=np.uint32)
    return trace.outputs[int(trace.output_offsets[request]) : int(trace.output_offsets[request + 1])]


def rendered_answer(trace: TokenTrace, rewritten: Rewritten) -> UInt32:
    """The earlier request's answer as the next prompt shows it: from where that goes on to the answer's last token and
    the one that ends the turn. What a template writes behind the answer's own text is left out, so this is its least
    length; none where the trace has no parts."""
    nothing = np.zeros(0, dtype=np.uint32)
    start, request = rewritten.resumed, rewritten.request
    if start is None or isinstance(trace.parts, OnePart):
        return nothing
    last = start
    for at in range(start, int(trace.prompt_tokens[request])):
        part = trace.parts.part_of(request, at)
        if part in ("user", "tool", "system", "tools"):
            break
        if part in ("assistant", "output"):
            last = at + 1
    return trace.prompt(request)[start : last + 1] if last > start else nothing


def _compare(
    trace: TokenTrace, request: int, earlier: int, *, answers: bool, named: bool
) -> Rewritten | None:
    prompt, before = trace.prompt(request), sent_before(trace, earlier, answers=answers)
    kept = common_prefix(prompt, before)
    # A prompt that ends inside the earlier one is a resend, not a continuation.
    if kept == len(before) or kept == len(prompt):
        return None
    at, old, edits = kept, kept, 0
    removed = added = before[:0]
    resumed: int | None = None
    while edits < _MOST_EDITS:
        if old == len(before):
            resumed = at
            break
        meeting = meet_again(prompt[at:], before[old:])
        if meeting is None and answers and named:
            meeting = meet_again(prompt[at:], before[old:], _SHORT_ANSWER)
        if meeting is None:
            tail = before[old:]
            if len(tail) <= (_TAIL if named or edits else min(_TAIL_OF_UNNAMED, len(before) // 10)):
                resumed = at
                removed = removed if edits else tail
            break
        if not edits:
            removed = before[old : old + meeting.second]
            added = prompt[at : at + meeting.first]
        at, old, edits = at + meeting.first + meeting.run, old + meeting.second + meeting.run, edits + 1
    if resumed is None and not named:
        return None  # two conversations that begin alike
    return Rewritten(request, earlier, kept, removed, added, resumed)
