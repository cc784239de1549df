"""Where two prompts part and meet again, and spans that vary ahead of text which many prompts have in common.

    prompt 1   [ head ][ 09:41 ][ stable run ............ ][ own text ]
    prompt 2   [ head ][ 17:05 ][ stable run ............ ][ other text ]
                      start     meet: the first place from which 32 tokens are equal again

Knows token ids only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvtune.analyzers.shared import SharedPrefixes
from kvtune.tokenization.trace import Int64, TokenTrace, UInt32

RUN = 32
"""Equal tokens that count as having met again."""

REACH = 512
"""Tokens within which prompts must meet again."""

FEWEST_PAIRS = 3
_MOST_PAIRS = 4096
_START_SLACK = 64

_WEIGHTS = np.random.default_rng(0).integers(1, 1 << 63, RUN, dtype=np.uint64) | np.uint64(1)


@dataclass(frozen=True)
class Meeting:
    """Two texts that part at their beginnings are equal again after `first` and `second` tokens, for `run` tokens."""

    first: int
    second: int
    run: int


@dataclass(frozen=True)
class VaryingSpan:
    """Tokens [start, ends[i]) of request `members[i]` (both int64[n]) differ, and what follows is common.

    `run`: how many tokens follow that a pair of prompts has in common, the median. `lost`: their sum over pairs.
    """

    start: int
    members: Int64
    ends: Int64
    run: int
    lost: int


def common_prefix(one: UInt32, other: UInt32) -> int:
    """How many tokens two texts begin with in common."""
    size = min(len(one), len(other))
    step, at = 1024, 0
    while at < size:
        differs = one[at : min(at + step, size)] != other[at : min(at + step, size)]
        first = int(differs.argmax())
        if differs[first]:
            return at + first
        at, step = min(at + step, size), step * 4
    return size


def meet_again(one: UInt32, other: UInt32, least: int = RUN) -> Meeting | None:
    """The nearest place (fewest tokens skipped in all) from which `least` tokens of both, at most 32, are equal."""
    if min(len(one), len(other)) < least:
        return None
    marks, other_marks = _window_hashes(one, least), _window_hashes(other, least)
    _, places, other_places = np.intersect1d(marks, other_marks, return_indices=True)
    for index in np.argsort(places + other_places, kind="stable").tolist():
        first, second = int(places[index]), int(other_places[index])
        run = common_prefix(one[first:], other[second:])
        if run >= least:
            return Meeting(first, second, run)
    return None


def _window_hashes(text: UInt32, size: int) -> npt.NDArray[np.uint64]:
    """A hash of the `size` tokens from each of the first places on."""
    windows = np.lib.stride_tricks.sliding_window_view(text[: REACH + size], size)
    hashes: npt.NDArray[np.uint64] = windows.astype(np.uint64) @ _WEIGHTS[:size]
    return hashes


def find_varying_span(trace: TokenTrace, shared: SharedPrefixes) -> VaryingSpan | None:
    """The span that stands before the most tokens in common; None where nothing of the kind is found."""
    pairs: dict[bytes, list[tuple[int, int, int]]] = defaultdict(list)
    for request, start, meeting in _meetings(trace, shared):
        at = start + meeting.first
        anchor = trace.prompt(request)[at : at + RUN].tobytes()
        pairs[anchor].append((request, start, meeting.run))
    enough = [
        (sum(run for *_, run in found), anchor)
        for anchor, found in pairs.items()
        if len(found) >= FEWEST_PAIRS
    ]
    if not enough:
        return None
    lost, anchor = max(enough)
    found = pairs[anchor]
    starts = [start for _, start, _ in found]
    usual = max(set(starts), key=lambda start: (starts.count(start), -start))
    # Two dates may begin alike: the span begins where the earliest of them parts.
    start = min(start for start in starts if start >= usual - _START_SLACK)
    owner = next(request for request, at, _ in found if at == start)
    members, ends = _with_anchor(trace, owner, start, np.frombuffer(anchor, dtype=np.uint32))
    if len(members) < FEWEST_PAIRS:
        return None
    return VaryingSpan(start, members, ends, int(np.median([run for *_, run in found])), lost)


def _meetings(trace: TokenTrace, shared: SharedPrefixes) -> Iterator[tuple[int, int, Meeting]]:
    """(request, where it parts from its closest earlier request, where the two meet again), of an even sample."""
    last: dict[int, int] = {}
    stride = -(-len(trace) // _MOST_PAIRS)
    for request in range(len(trace)):
        namespace = int(trace.namespace[request])
        peer, before = int(shared.shared_with[request]), last.get(namespace, -1)
        last[namespace] = request
        peer = before if peer < 0 else peer
        if peer < 0 or request % stride:
            continue
        start = int(shared.shared[request])
        meeting = meet_again(trace.prompt(request)[start:], trace.prompt(peer)[start:])
        # Prompts that part in long texts of their own meet in a phrase; a span is shorter than what follows it.
        if meeting is not None and meeting.run >= max(meeting.first, meeting.second):
            yield request, start, meeting


def _with_anchor(trace: TokenTrace, owner: int, start: int, anchor: UInt32) -> tuple[Int64, Int64]:
    """Requests that begin as the owner does and hold the anchor soon after `start`, and where it stands in them."""
    head = trace.prompt(owner)[:start]
    members, places = [], []
    for request in range(len(trace)):
        prompt = trace.prompt(request)
        if not np.array_equal(prompt[:start], head):
            continue
        near = prompt[start : start + 2 * REACH + RUN]
        for at in np.flatnonzero(near[: max(len(near) - RUN + 1, 0)] == anchor[0]).tolist():
            if np.array_equal(near[at : at + RUN], anchor):
                members.append(request)
                places.append(start + at)
                break
    return np.array(members, dtype=np.int64), np.array(places, dtype=np.int64)
