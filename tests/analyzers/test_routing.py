"""Replicas share nothing with each other."""

from __future__ import annotations

import numpy as np

from kvtune.analyzers.routing import logged_replicas, route_requests, separate_caches
from kvtune.analyzers.shared import find_shared_prefixes
from tests.analyzers.traces import trace_of

PROMPTS = [[1, 2, 3, 4], [9, 9, 9, 9], [1, 2, 3, 4, 5], [9, 9, 9, 9, 7], [1, 2, 3, 4, 5, 6]]


def test_names_in_the_log_become_replicas() -> None:
    assert logged_replicas(trace_of(PROMPTS)) is None
    assert logged_replicas(trace_of(PROMPTS, servers=["a"] * 5)) is None
    found = logged_replicas(trace_of(PROMPTS, servers=["b", "a", "b", None, "a"]))
    assert found is not None
    assert found.tolist() == [0, 1, 0, 2, 1]


def test_prefix_routing_follows_what_is_shared() -> None:
    trace = trace_of(PROMPTS)
    shared = find_shared_prefixes(trace)
    # The first two go to the emptier replica in turn, the rest to where their prefix is.
    assert route_requests(trace, shared, 2, "prefix", 0).tolist() == [0, 1, 0, 1, 0]


def test_sticky_keeps_a_conversation_on_one_replica() -> None:
    trace = trace_of(PROMPTS)
    for seed in range(20):
        found = route_requests(trace, find_shared_prefixes(trace), 3, "sticky", seed).tolist()
        assert found[0] == found[2] == found[4]
        assert found[1] == found[3]


def test_separate_caches_share_nothing() -> None:
    trace = trace_of(PROMPTS)
    apart = separate_caches(trace, np.array([0, 0, 1, 0, 1], dtype=np.int32))
    assert find_shared_prefixes(trace).shared.tolist() == [0, 0, 4, 4, 5]
    assert find_shared_prefixes(apart).shared.tolist() == [0, 0, 0, 4, 5]
