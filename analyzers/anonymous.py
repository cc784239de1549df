"""A trace's prefix structure without its content: each id replaced by the request that had its prefix first.

Two prompts share exactly as many tokens as before, in the same namespaces, at the same times from the start and in
the same sessions. A number depends on who had the whole prefix up to there first and on nothing that a token said, so
equal tokens further on do not stay equal: there is nothing to count. Answers keep their length only. Knows
`TokenTrace`; no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from kvtune.analyzers.prefix_tree import KEY_SHIFT, build_prefix_tree
from kvtune.tokenization.trace import TokenTrace


def anonymous_lines(trace: TokenTrace) -> Iterator[bytes]:
    """JSON lines of the format `token-ids`, or `mooncake` for block hashes, without line ends."""
    tree = build_prefix_tree(
        trace.tokens, trace.offsets, trace.namespace, span=trace.span, lengths=trace.prompt_tokens
    )
    first_block = trace.offsets.tolist()
    sessions, servers = _names(trace.sessions, "s"), _names(trace.servers, "v")
    start = float(np.nanmin(trace.arrival)) if not np.isnan(trace.arrival).all() else 0.0
    for index in range(len(trace)):
        space = int(trace.namespace[index])
        path = tree.paths[index]
        owners = [base >> KEY_SHIFT for base in path.bases]
        ends = [-(-end // trace.span) for end in path.ends]
        sizes = np.diff([0, *ends])
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
        if trace.span == 1:
            line |= {"output_tokens": answer} if answer >= 0 else {}
            line["token_ids"] = np.repeat(owners, sizes).tolist()
        else:
            line |= {"input_length": int(trace.prompt_tokens[index]), "block_size": trace.span}
            line |= {"output_length": answer} if answer >= 0 else {}
            # A block's id stands for the whole prefix, so the same one does not come twice in a prompt.
            starts = np.repeat([first_block[owner] for owner in owners], sizes)
            line["hash_ids"] = (starts + np.arange(len(starts))).tolist()
        yield msgspec.json.encode(line)


def _names(names: Sequence[str | None] | None, letter: str) -> list[str | None] | None:
    if names is None:
        return None
    numbers: dict[str, str] = {}
    return [None if name is None else numbers.setdefault(name, f"{letter}{len(numbers)}") for name in names]


def _time(seconds: float, span: int) -> float:
    """Block-hash traces write milliseconds, all others seconds."""
    return round(seconds * 1000, 3) if span > 1 else round(seconds, 6)
