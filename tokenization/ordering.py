"""Requests in the order in which they are replayed, each with an id of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from kvtune.tokenization.clock import PER_SECOND, Moment, decide_unit
from kvtune.tokenization.continuations import count_directions
from kvtune.tokenization.request import Request

Order = Literal["oldest", "newest"]
"""What a file begins with."""


def settle_times(requests: Sequence[Request], times: Sequence[Moment | None]) -> str | None:
    """Sets `arrival` of one file's requests to seconds; gives the unit that the file's numbers were read in.

    "ISO 8601" for times that are no numbers, None where there are no times.
    """
    open_numbers = [time.value for time in times if time is not None and time.unit is None]
    decided = decide_unit(open_numbers) if open_numbers else None
    said: str | None = None
    for request, time in zip(requests, times, strict=True):
        if time is not None:
            unit = time.unit or decided or "s"
            request.arrival = time.value / PER_SECOND[unit]
            said = said or ("ISO 8601" if time.iso else unit)
    return decided or said


def count_reordered(requests: Sequence[Request]) -> int:
    """How many requests of a file stand after one that arrived later."""
    late = 0
    newest = float("-inf")
    for request in requests:
        if request.arrival is not None:
            if request.arrival < newest:
                late += 1
            else:
                newest = request.arrival
    return late


def oldest_first(
    name: str, requests: list[Request], order: Order | None, unused: Counter[str]
) -> tuple[list[Request], list[str]]:
    """One file's requests, oldest first where times do not say it, and caveats where nothing does.

    `unused` counts fields that look like times and have no usual name.
    """
    timed = {request.arrival for request in requests if request.arrival is not None}
    if len(requests) < 2 or len(timed) > 1:
        return requests, []
    notes = []
    if order == "newest" or (order is None and is_newest_first(requests)):
        requests = requests[::-1]
        notes.append(f"{name} is in newest-first order: reversed. --order oldest keeps file order.")
    elif order is None:
        notes.append(f"No times in {name}: assuming file order, oldest first (--order, --time-field).")
    field = next((field for field, _ in unused.most_common() if field), None)
    if field is not None and not timed:
        notes.append(f"{field} in {name} looks like a time and is not used: --time-field {field}.")
    return requests, notes


def is_newest_first(requests: Sequence[Request]) -> bool:
    """Whether a file without times stands newest first: its requests continue ones that stand behind them."""
    onward, backward = count_directions(requests)
    return backward >= _LEAST_BACKWARD and backward > _TIMES_MORE * onward


_LEAST_BACKWARD = 2
_TIMES_MORE = 2


def in_replay_order(files: Sequence[Sequence[Request]]) -> list[Request]:
    """All requests by arrival, equal ones in file and argument order.

    A request without a time stays behind the one before it in its file. Where a file has no times at all
    there is no common clock: each file is sorted by itself, and they follow in argument order.
    """
    if all(any(request.arrival is not None for request in file) for file in files if file):
        keyed = [pair for file in files for pair in zip(_keys(file), file, strict=True)]
        keyed.sort(key=lambda pair: pair[0])
        return [request for _, request in keyed]
    result: list[Request] = []
    for file in files:
        result += (
            request for _, request in sorted(zip(_keys(file), file, strict=True), key=lambda pair: pair[0])
        )
    return result


def _keys(file: Sequence[Request]) -> list[float]:
    keys = []
    last = float("-inf")
    for request in file:
        if request.arrival is not None:
            last = request.arrival
        keys.append(last)
    return keys


def number_duplicates(requests: Sequence[Request]) -> int:
    """Gives every request an id of its own: the second "a" becomes "a#2". Returns how many were renamed."""
    taken = {request.id for request in requests}
    seen: dict[str, int] = {}
    renamed = 0
    for request in requests:
        count = seen.get(request.id, 0) + 1
        seen[request.id] = count
        if count == 1:
            continue
        original = request.id
        while f"{original}#{count}" in taken:
            count += 1
        seen[original] = count
        request.id = f"{original}#{count}"
        taken.add(request.id)
        renamed += 1
    return renamed
