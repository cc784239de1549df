"""Lever: send a common head once on its own, so that a state is kept where it ends.

A recurrent state is kept at each prompt's own last unit boundary and nowhere else inside a chunk. A prompt that is
just the head leaves one at the head's end, where everyone who shares it can resume, from the second request on
instead of the third. Where hits land on a grid that is too coarse for the head's end, a finer unit is tried with it;
where a bounded pool evicts, the head is sent again and again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kvtune.analyzers.levers.edits import Insertion, insert_requests
from kvtune.analyzers.levers.heads import Head
from kvtune.analyzers.levers.trial import Baseline, Found, Gain, try_change, with_setting
from kvtune.analyzers.report import Lever
from kvtune.tokenization.trace import Int64, UInt32

_NEAR_THE_END = (0.9, 0.97)


@dataclass(frozen=True)
class _Trial:
    """The head sent `sent` times, under another unit or (None) the one in force."""

    gain: Gain
    unit: int | None
    sent: int


def prime_prompt(base: Baseline, head: Head) -> UInt32:
    """The head and the one token after it: the last token of a prompt is always recomputed, so one more is needed."""
    prompt = base.trace.prompt(head.owner)
    return prompt[: min(head.tokens + 1, len(prompt))]


def prime(base: Baseline, head: Head, units: Sequence[int] = ()) -> Found | None:
    """The gain of sending `head` before its first request; None where it gains nothing.

    Args:
        units: other match units that the server would take, to be tried with it.
    """
    prompt = prime_prompt(base, head)
    best: _Trial | None = None
    for unit in (None, *_units_near_the_end(head.tokens, base.grid, units)):
        firsts = _firsts(base, head)
        once = _send(base, prompt, unit, firsts)
        again = _after_evictions(base, head, once)
        for trial in (once, *([_send(base, prompt, unit, again)] if len(again) > len(firsts) else [])):
            if trial.gain.tokens > (0 if best is None else best.gain.tokens):
                best = trial
    if best is None:
        return None
    return Found(_lever(base, head, best, len(prompt)), best.gain, ((head.owner, prompt),))


def _units_near_the_end(tokens: int, grid: int, units: Sequence[int]) -> Iterator[int]:
    """The coarsest units finer than the grid that land within a tenth, and within 3%, of the head's end."""
    reached = tokens // grid * grid
    seen: set[int] = set()
    for fraction in _NEAR_THE_END:
        near = [
            unit
            for unit in units
            if unit < grid and tokens // unit * unit >= max(fraction * tokens, reached + 1)
        ]
        if near and max(near) not in seen:
            seen.add(max(near))
            yield max(near)


def _by_namespace(base: Baseline, head: Head) -> list[Int64]:
    """The head's requests, apart by namespace, in each of which it must be cached on its own."""
    namespaces = base.trace.namespace[head.members]
    return [head.members[namespaces == one] for one in np.unique(namespaces)]


def _firsts(base: Baseline, head: Head) -> Int64:
    """The first request of each namespace with the head."""
    return np.array([members[0] for members in _by_namespace(base, head)], dtype=np.int64)


def _after_evictions(base: Baseline, head: Head, once: _Trial) -> Int64:
    """Requests before which the head is gone again although the one that had it before still met it; and the first
    ones."""
    after = once.gain.after
    assert after is not None
    if not int(after.result.evicted_blocks.sum()):
        return _firsts(base, head)
    reach = head.tokens // after.grid * after.grid
    gone = []
    for members in _by_namespace(base, head):
        met = after.result.hit_tokens[once.gain.original[members]] >= reach
        gone.append(members[np.concatenate(([True], met[:-1] & ~met[1:]))])
    return np.sort(np.concatenate(gone))


def _send(base: Baseline, prompt: UInt32, unit: int | None, before: Int64) -> _Trial:
    changed = insert_requests(base.trace, [Insertion(int(request), prompt) for request in before])
    gain = try_change(
        base,
        trace=changed.trace,
        config=base.config if unit is None else with_setting(base.config, match_unit=unit),
        original=changed.original,
        replica=None if base.replica is None else base.replica[changed.source],
    )
    return _Trial(gain, unit, len(before))


def _lever(base: Baseline, head: Head, trial: _Trial, size: int) -> Lever:
    gain, unit = trial.gain, trial.unit
    namespaces = len(_by_namespace(base, head))
    often = "once" if namespaces == 1 else f"once in each of {namespaces:,} namespaces"
    if trial.sent > namespaces:
        often = f"{trial.sent:,} times, each time that it was evicted,"
    with_unit = "" if unit is None else f" with --prefix-match-unit {unit}"
    grid = unit or base.grid
    paid = size * trial.sent
    return Lever(
        kind="prime",
        title=f"Warm up the shared prefix of {head.tokens:,} tokens{with_unit}",
        what=(
            f"Send the head of {head.tokens:,} tokens that {len(head.members):,} requests start with {often} on its "
            f"own before them (the prompt of {base.trace.ids[head.owner]!r}, cut there){with_unit}."
        ),
        gain_tokens=gain.tokens,
        gain_ci95=gain.interval,
        flags=None if unit is None else (f"--prefix-match-unit {unit}",),
        change="kvtune analyze --write-prime FILE writes the request; send it when the server has started",
        cost=f"{paid:,} prompt tokens, already taken off the gain; again after a restart or an eviction",
        evidence=(
            f"{head.wasted:,} tokens of this head are computed again by requests that share it; a hit can land "
            f"{head.tokens // grid * grid:,} tokens in"
        ),
        limits="not where the head changes with each deployment faster than it is sent, or the pool evicts it at once",
    )
