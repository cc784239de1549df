"""A trace's prefix structure without its content: ids renumbered by first appearance, names by count.

Two prompts share exactly as many tokens as before, in the same namespaces, at the same times from the start and in
the same sessions; what a token said is gone. Answers keep their length only. Knows `TokenTrace`; no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from kvtune.tokenization.trace import Int64, TokenTrace


def anonymous_lines(trace: TokenTrace) -> Iterator[bytes]:
    """JSON lines of the format `token-ids`, or `mooncake` for block hashes, without line ends."""
    present, compact = np.unique(trace.tokens, return_inverse=True)
    numbers: dict[int, _Renumbering] = {}
    sessions, servers = _names(trace.sessions, "s"), _names(trace.servers, "v")
    start = float(np.nanmin(trace.arrival)) if not np.isnan(trace.arrival).all() else 0.0
    for index in range(len(trace)):
        space = int(trace.namespace[index])
        known = numbers.setdefault(space, _Renumbering(len(present)))
        elements = compact[int(trace.offsets[index]) : int(trace.offsets[index + 1])]
        line: dict[str, Any] = {"request_id": f"r{index}"}
        arrival = float(trace.arrival[index])
        if arrival == arrival:
            line["timestamp"] = _time(arrival - start, trace.span)
        if sessions is not None and sessions[index] is not None:
            line["session"] = sessions[index]
        if servers is not None and servers[index] is not None:
            line["server"] = servers[index]
        if space:
            line["cache_salt"] = f"n{space}"
        answer = int(trace.output_tokens[index]) if trace.output_tokens is not None else -1
        ids = known.of(elements).tolist()
        if trace.span == 1:
            line |= {"output_tokens": answer} if answer >= 0 else {}
            line["token_ids"] = ids
        else:
            line |= {"input_length": int(trace.prompt_tokens[index]), "block_size": trace.span}
            line |= {"output_length": answer} if answer >= 0 else {}
            line["hash_ids"] = ids
        yield msgspec.json.encode(line)


class _Renumbering:
    """New numbers for the elements of one namespace, in the order in which they first appear."""

    def __init__(self, size: int) -> None:
        self._numbers = np.full(size, -1, dtype=np.int64)
        self._next = 0

    def of(self, elements: Int64) -> Int64:
        """The new numbers of a prompt's elements."""
        fresh = elements[self._numbers[elements] < 0]
        if len(fresh):
            found, first = np.unique(fresh, return_index=True)
            ordered = found[np.argsort(first)]
            self._numbers[ordered] = np.arange(self._next, self._next + len(ordered))
            self._next += len(ordered)
        return self._numbers[elements]


def _names(names: Sequence[str | None] | None, letter: str) -> list[str | None] | None:
    if names is None:
        return None
    numbers: dict[str, str] = {}
    return [None if name is None else numbers.setdefault(name, f"{letter}{len(numbers)}") for name in names]


def _time(seconds: float, span: int) -> float:
    """Block-hash traces write milliseconds, all others seconds."""
    return round(seconds * 1000, 3) if span > 1 else round(seconds, 6)
