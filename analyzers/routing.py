"""Which replica's cache serves a request: the one the log names, or one chosen by a simple router.

Each replica has a cache of its own, so prefixes are shared within a replica only. Knows shared prefixes and
sessions; nothing about blocks.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from kvtune.analyzers.sessions import find_sessions
from kvtune.analyzers.shared import SharedPrefixes, find_shared_prefixes
from kvtune.tokenization.trace import Int32, TokenTrace

if TYPE_CHECKING:
    from kvtune.analyzers.options import AnalyzeOptions

Route = Literal["sticky", "random", "prefix"]


def logged_replicas(trace: TokenTrace) -> Int32 | None:
    """int32[R], dense replica numbers as the log has them; requests without one share a replica. None: no names."""
    if trace.servers is None or len(set(trace.servers)) < 2:
        return None
    numbers: dict[str | None, int] = {}
    return np.array([numbers.setdefault(server, len(numbers)) for server in trace.servers], dtype=np.int32)


def route_requests(
    trace: TokenTrace, shared: SharedPrefixes, replicas: int, route: Route, seed: int
) -> Int32:
    """int32[R], the replica that a router picks.

    `sticky`: by session, hashed, as session affinity does. `random`: by a seeded draw. `prefix`: where the
    request that shares most went, if that is more than a quarter of the prompt; else where the fewest prompt
    tokens went so far.

    Args:
        shared: of the whole trace, as if there were one cache.
    """
    if route == "random":
        return np.random.default_rng(seed).integers(0, replicas, len(trace), dtype=np.int32)
    if route == "sticky":
        sessions = find_sessions(trace, shared)
        digests = [
            int.from_bytes(hashlib.sha256(f"{seed}/{session}".encode()).digest()[:8])
            for session in range(int(sessions.max()) + 1)
        ]
        return np.array([digests[session] % replicas for session in sessions.tolist()], dtype=np.int32)
    load = [0] * replicas
    chosen: list[int] = []
    lengths, common, peers = (
        array.tolist() for array in (trace.prompt_tokens, shared.shared, shared.shared_with)
    )
    for index, length in enumerate(lengths):
        replica = chosen[peers[index]] if common[index] * 4 > length else load.index(min(load))
        chosen.append(replica)
        load[replica] += length
    return np.array(chosen, dtype=np.int32)


def caches_of(trace: TokenTrace, options: AnalyzeOptions) -> tuple[TokenTrace, Int32 | None]:
    """The trace with a namespace for each replica, and int32[R]: each request's replica; None where there is one.

    Replicas are those of the log; without any, `options.replicas` of them behind `options.route`.
    """
    replica = logged_replicas(trace)
    if replica is None and options.replicas > 1:
        shared = find_shared_prefixes(trace, options.outputs)
        replica = route_requests(trace, shared, options.replicas, options.route, options.seed)
    return (trace, None) if replica is None else (separate_caches(trace, replica), replica)


def separate_caches(trace: TokenTrace, replica: Int32) -> TokenTrace:
    """The same trace with a namespace of its own for every pair of namespace and replica."""
    pairs = trace.namespace.astype(np.int64) * (int(replica.max()) + 1) + replica
    dense = np.unique(pairs, return_inverse=True)[1].astype(np.int32)
    return replace(trace, namespace=dense)
