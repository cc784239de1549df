"""The tree of shared prefixes: for each sequence, the longest prefix it shares with an earlier one, and keys.

A prefix of length p belongs to the first sequence that had it, its *owner*. `(owner, p)` therefore names the
prefix exactly, as the engine's chained block hash does, without hashing a token: two sequences have the same
key at p if and only if their first p elements and their namespaces are equal. `PrefixPath` gives those keys.

          0                 600        900            owner of a position = who had the prefix first
    seq 0 |-----------------------------|             path 0: (0, 900] -> 0
    seq 1 |------------------*=======|                path 1: (0, 600] -> 0, (600, 850] -> 1
    seq 2 |------------------*====+-----|             path 2: (0, 600] -> 0, (600, 750] -> 1, (750, 950] -> 2

Knows token ids (or block hashes) and namespaces; nothing about blocks, units or engines.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvtune.tokenization.trace import Int32, Int64, UInt32

KEY_SHIFT = 40
"""Bits of a key below the owner: positions are below 2**40 tokens."""

_FIRST_COMPARE = 1024


class PrefixPath:
    """Who owns each prefix of one sequence.

    Attributes:
        ends: ascending ends, in tokens; segment i covers the prefix lengths (ends[i - 1], ends[i]].
        bases: `owner << KEY_SHIFT` of each segment.
    """

    __slots__ = ("bases", "ends")

    def __init__(self, ends: list[int], bases: list[int]) -> None:
        self.ends = ends
        self.bases = bases

    def key(self, position: int) -> int:
        """The name of the prefix of `position` tokens, 0 < position <= length."""
        return self.bases[bisect_left(self.ends, position)] + position

    def keys(self, positions: range) -> list[int]:
        """`[key(p) for p in positions]` for an ascending range, one pass over the segments."""
        keys: list[int] = []
        start, stop, step = positions.start, positions.stop, positions.step
        if start >= stop:
            return keys
        for index in range(bisect_left(self.ends, start), len(self.ends)):
            end, base = self.ends[index], self.bases[index]
            last = min(end + 1, stop)
            if last > start:
                inside = range(start, last, step)
                keys.extend(range(base + start, base + last, step))
                start = inside[-1] + step
            if start >= stop:
                break
        return keys


class _Node:
    """An edge of the radix tree: the prefix lengths (start, end] of its owner's path, in elements."""

    __slots__ = ("children", "end", "latest", "parent", "start")

    def __init__(self, start: int, end: int, latest: int, parent: _Node | None) -> None:
        self.start = start
        self.end = end
        self.latest = latest  # the latest sequence that passes through this edge's first element
        self.parent = parent
        self.children: dict[int, _Node] = {}


_NO_PATH = PrefixPath([], [])
_NO_NODE = _Node(0, 0, -1, None)


@dataclass(frozen=True)
class PrefixTree:
    """What `build_prefix_tree` found; lengths in tokens.

    Attributes:
        shared: int64[S], the longest prefix shared with any earlier sequence of the namespace.
        shared_with: int32[S], the latest earlier sequence that shares that much; -1 where nothing is shared.
        repeated: int64[S], the longest prefix that a later sequence of the namespace has, too.
        paths: one `PrefixPath` per sequence.
    """

    shared: Int64
    shared_with: Int32
    repeated: Int64
    paths: Sequence[PrefixPath]


def build_prefix_tree(
    tokens: UInt32,
    offsets: Int64,
    namespace: Int32,
    *,
    span: int = 1,
    lengths: Int64 | None = None,
) -> PrefixTree:
    """Insert the sequences in order and keep, for each, what it shares with those before it.

    Args:
        tokens: uint32[T], elements of all sequences; offsets: int64[S + 1]; namespace: int32[S].
        span: tokens per element. With block hashes only full blocks can be shared: a last block that
            `lengths` (tokens, int64[S]) shows to be partial belongs to its own sequence.

    One pass: each sequence is compared with the latest one on its path in growing slices, so the work is
    linear in the tokens and a few steps per branch. Memory: the paths, and one node per branch.
    """
    count = len(offsets) - 1
    shared = np.zeros(count, dtype=np.int64)
    shared_with = np.full(count, -1, dtype=np.int32)
    paths: list[PrefixPath] = [_NO_PATH] * count
    leaves: list[_Node] = [_NO_NODE] * count
    roots: dict[int, _Node] = {}
    starts = offsets.tolist()
    spaces = namespace.tolist()
    for index in range(count):
        begin, finish = starts[index], starts[index + 1]
        total = int(lengths[index]) if lengths is not None else (finish - begin) * span
        sequence = tokens[begin : begin + total // span]
        size = len(sequence)
        root = roots.get(spaces[index])
        if root is None:
            root = roots[spaces[index]] = _Node(0, 0, -1, None)
        node, depth = _descend(root, sequence, tokens, starts, leaves)
        if depth < node.end:
            node = _split(node, depth, tokens, starts)
        peer = node.latest
        if depth:
            shared[index] = depth * span
            shared_with[index] = peer
            paths[index] = _extend(paths[peer], depth * span, total, index)
        else:
            paths[index] = PrefixPath([total], [index << KEY_SHIFT])
        if depth < size:
            leaf = _Node(depth, size, index, node)
            node.children[int(sequence[depth])] = leaf
        else:
            leaf = node
        leaves[index] = leaf
        while node.parent is not None:
            node.latest = index
            node = node.parent
    repeated = np.array([_repeated(leaf, index) for index, leaf in enumerate(leaves)], dtype=np.int64)
    return PrefixTree(shared, shared_with, repeated * span, paths)


def _repeated(node: _Node, index: int) -> int:
    """The end of the deepest edge above the leaf `node` of sequence `index` that a later one passes, in elements."""
    while node.parent is not None and node.latest <= index:
        node = node.parent
    return node.end


def _descend(
    root: _Node, sequence: UInt32, tokens: UInt32, starts: list[int], leaves: list[_Node]
) -> tuple[_Node, int]:
    """The deepest edge that `sequence` enters, and how many of its elements match there."""
    node, depth, size = root, 0, len(sequence)
    while depth < size:
        child = node.children.get(int(sequence[depth]))
        if child is None:
            return node, depth
        peer = child.latest
        depth = _match(sequence, tokens, starts[peer], leaves[peer].end, depth + 1)
        # The peer's leaf lies below the child: climb to the edge that holds `depth`.
        node = leaves[peer]
        while node.start >= depth:
            assert node.parent is not None
            node = node.parent
        if depth < node.end:
            return node, depth
    return node, depth


def _match(sequence: UInt32, tokens: UInt32, start: int, length: int, depth: int) -> int:
    """How far `sequence` equals the peer at `tokens[start:start + length]`, both equal up to `depth`."""
    limit = min(len(sequence), length)
    step = _FIRST_COMPARE
    while depth < limit:
        stop = min(depth + step, limit)
        differs = sequence[depth:stop] != tokens[start + depth : start + stop]
        first = int(differs.argmax())
        if differs[first]:
            return depth + first
        depth = stop
        step *= 4
    return depth


def _split(node: _Node, depth: int, tokens: UInt32, starts: list[int]) -> _Node:
    """Cut the edge at `depth`; the upper part keeps the parent's pointer, the lower part the subtree."""
    assert node.parent is not None
    upper = _Node(node.start, depth, node.latest, node.parent)
    begin = starts[node.latest]
    node.parent.children[int(tokens[begin + node.start])] = upper
    upper.children[int(tokens[begin + depth])] = node
    node.start = depth
    node.parent = upper
    return upper


def _extend(peer: PrefixPath, shared: int, total: int, owner: int) -> PrefixPath:
    """The path of a new sequence: the peer's up to `shared`, then its own."""
    keep = bisect_left(peer.ends, shared)
    ends = peer.ends[:keep]
    bases = peer.bases[: keep + 1]
    ends.append(shared)
    if total > shared:
        ends.append(total)
        bases.append(owner << KEY_SHIFT)
    return PrefixPath(ends, bases)
