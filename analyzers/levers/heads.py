"""Common heads: prefixes that many prompts start with, and how much of them is computed again and again.

A head is named by the request that had it first and by its length; a request has it if its prefix path runs
through that request's text at least that far.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvtune.analyzers.levers.spans import common_prefix
from kvtune.analyzers.prefix_tree import KEY_SHIFT, PrefixPath
from kvtune.tokenization.trace import Int64, TokenTrace

MOST_HEADS = 3
FEWEST_REQUESTS = 3
_ENDS_TRIED = 32
_MOST_NAMESPACES = 16
_TELLING = 64
"""Tokens by which heads of several namespaces are told apart."""
_NEARLY = 0.9
"""Heads that have so much of the longer one in common are the same advice."""


@dataclass(frozen=True)
class Head:
    """The first `tokens` tokens of request `owner`; `members` int64[n], the requests that start with them.

    `wasted`: tokens of it that its members compute although an earlier request had them.
    """

    owner: int
    tokens: int
    members: Int64
    wasted: int


def common_heads(
    trace: TokenTrace, paths: Sequence[PrefixPath], hit_tokens: Int64, shared: Int64
) -> list[Head]:
    """The heads with the most waste, at most three. The same text in several namespaces (adapters, tenants, replicas)
    is one head."""
    namespaces = int(trace.namespace.max()) + 1
    if namespaces == 1:
        return find_heads(paths, hit_tokens, shared)
    merged: dict[bytes, Head] = {}
    for head in find_heads(paths, hit_tokens, shared, most=MOST_HEADS * min(namespaces, _MOST_NAMESPACES)):
        text = trace.prompt(head.owner)[: head.tokens]
        begins = text[: min(_TELLING, head.tokens)].tobytes()
        known = merged.get(begins)
        if known is None:
            merged[begins] = head
            continue
        tokens = common_prefix(text, trace.prompt(known.owner)[: known.tokens])
        if tokens < _NEARLY * max(head.tokens, known.tokens):
            merged[text.tobytes()] = head
            continue
        members = np.union1d(head.members, known.members)
        merged[begins] = Head(known.owner, tokens, members, head.wasted + known.wasted)
    return sorted(merged.values(), key=lambda head: (-head.wasted, head.tokens))[:MOST_HEADS]


def find_heads(
    paths: Sequence[PrefixPath], hit_tokens: Int64, shared: Int64, most: int = MOST_HEADS
) -> list[Head]:
    """The heads with the most waste, at most `most`, none of which contains another's requests and fewer tokens.

    Args:
        hit_tokens, shared: int64[R] under the setting that is to be improved.
    """
    ends: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for request, path in enumerate(paths):
        for end, base in zip(path.ends, path.bases, strict=True):
            ends[base >> KEY_SHIFT].append((end, request))
    heads = []
    for owner, reached in ends.items():
        if len(reached) < FEWEST_REQUESTS:
            continue
        reached.sort(reverse=True)
        for tokens in _busiest_ends([end for end, _ in reached]):
            members = np.array(sorted(request for end, request in reached if end >= tokens), dtype=np.int64)
            again = np.minimum(shared[members], tokens) - hit_tokens[members]
            heads.append(Head(owner, tokens, members, int(np.maximum(again, 0).sum())))
    heads.sort(key=lambda head: (-head.wasted, head.tokens))
    return _distinct(heads, most)


def _busiest_ends(descending: list[int]) -> list[int]:
    """The ends with the most tokens under them, requests times length; at most 32."""
    reach = {end: count for count, end in enumerate(descending, start=1) if count >= FEWEST_REQUESTS}
    return sorted(reach, key=lambda end: -end * reach[end])[:_ENDS_TRIED]


def _distinct(heads: list[Head], most: int) -> list[Head]:
    kept: list[Head] = []
    for head in heads:
        if head.wasted == 0 or len(kept) == most:
            break
        # A little longer or shorter head of nearly the same requests is the same advice again.
        if all(len(np.intersect1d(head.members, other.members)) * 2 < len(head.members) for other in kept):
            kept.append(head)
    return kept
