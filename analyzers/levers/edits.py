"""Changed traces: the same requests with tokens added, moved or replaced, or with requests added. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvtune.tokenization.encoding.buffer import in_one
from kvtune.tokenization.trace import Int64, OnePart, TokenTrace, UInt32

FILLER = np.uint32(0xFFFF_FFF0)
"""A token id that no vocabulary has: stands for added text whose words do not matter."""


@dataclass(frozen=True)
class Insertion:
    """A request to add before request `before`: its prompt, in that request's namespace and at its time."""

    before: int
    prompt: UInt32


def edit_prompts(trace: TokenTrace, requests: Int64, edit: Callable[[UInt32], UInt32]) -> TokenTrace:
    """`edit` applied to the prompts of `requests`."""
    chosen = set(requests.tolist())
    return with_prompts(
        trace, (edit(trace.prompt(r)) if r in chosen else trace.prompt(r) for r in range(len(trace)))
    )


def with_prompts(trace: TokenTrace, prompts: Iterable[UInt32]) -> TokenTrace:
    """The same requests with other prompts; only for traces of tokens."""
    tokens, offsets = in_one(prompts)
    return replace(trace, tokens=tokens, offsets=offsets, prompt_tokens=np.diff(offsets), parts=OnePart())


def with_answers(trace: TokenTrace, answers: Sequence[UInt32]) -> TokenTrace:
    """The same requests with other recorded answers."""
    outputs, offsets = in_one(answers)
    return replace(trace, outputs=outputs, output_offsets=offsets)


@dataclass(frozen=True)
class Widened:
    """A trace with requests added. `original` int64[R]: where the old requests stand; `source` int64[R']: the old
    request that each one was made from."""

    trace: TokenTrace
    original: Int64
    source: Int64


def insert_requests(trace: TokenTrace, insertions: Sequence[Insertion]) -> Widened:
    """Add requests.

    Added requests generate one token and belong to no session, family or server.
    """
    at = np.array([insertion.before for insertion in insertions], dtype=np.int64)
    order = np.argsort(at, kind="stable")
    insertions, at = [insertions[index] for index in order], at[order]
    original = np.arange(len(trace)) + np.searchsorted(at, np.arange(len(trace)), side="right")
    total = len(trace) + len(at)
    added = np.setdiff1d(np.arange(total), original)
    source = np.empty(total, dtype=np.int64)
    source[original] = np.arange(len(trace))
    source[added] = at
    prompts: list[UInt32] = [trace.prompt(int(index)) for index in source]
    for position, insertion in zip(added.tolist(), insertions, strict=True):
        prompts[position] = insertion.prompt
    is_added = np.zeros(total, dtype=bool)
    is_added[added] = True
    tokens, offsets = in_one(prompts)
    widened = replace(
        trace,
        tokens=tokens,
        offsets=offsets,
        prompt_tokens=np.diff(offsets),
        arrival=trace.arrival[source],
        namespace=trace.namespace[source],
        ids=[f"added {index}" if is_added[index] else trace.ids[source[index]] for index in range(total)],
        output_tokens=None
        if trace.output_tokens is None
        else np.where(is_added, 1, trace.output_tokens[source]).astype(np.int64),
        outputs=None if trace.output_offsets is None else trace.outputs,
        output_offsets=_output_offsets(trace, source, is_added),
        sessions=None,
        servers=None,
        families=None,
        parts=OnePart(),
    )
    return Widened(widened, original.astype(np.int64), source)


def _output_offsets(trace: TokenTrace, source: Int64, is_added: np.ndarray) -> Int64 | None:
    """Offsets of the recorded answers; added requests have none, so that the answers stay where they are."""
    if trace.output_offsets is None:
        return None
    lengths = np.where(is_added, 0, np.diff(trace.output_offsets)[source])
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
