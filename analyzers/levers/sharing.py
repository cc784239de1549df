"""Levers that decide who shares a cache with whom: isolation by salt, adapter or tenant, and routing over replicas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kvtune.analyzers.levers.trial import Baseline, Found, try_change
from kvtune.analyzers.report import Lever
from kvtune.analyzers.routing import route_requests
from kvtune.analyzers.shared import find_shared_prefixes
from kvtune.tokenization.trace import Int32, TokenTrace


def isolation_price(base: Baseline, undivided: TokenTrace) -> Iterator[Found]:
    """What separate namespaces cost: shown, never advised away, since they are there for a reason.

    Args:
        undivided: the trace before replicas were given namespaces of their own.
    """
    if int(undivided.namespace.max()) == 0:
        return
    merged = _namespaces_of_replicas(base)
    gain = try_change(base, trace=replace(base.trace, namespace=merged))
    apart = int(undivided.namespace.max()) + 1
    lever = Lever(
        kind="isolation",
        title=f"The price of {apart:,} separate namespaces",
        what=(
            f"The {apart:,} namespaces of the trace (model, adapter, salt or tenant) "
            "share nothing with each other; this is what that costs."
        ),
        gain_tokens=gain.tokens,
        gain_ci95=gain.interval,
        cost="no advice: namespaces keep models, adapters and tenants apart",
        evidence="the first request of each namespace with a prefix computes it, whoever had it before",
        advice=False,
    )
    yield Found(lever, gain)


def routing(base: Baseline, undivided: TokenTrace) -> Iterator[Found]:
    """Send a request to the replica that holds its prefix, or keep a conversation on one replica."""
    if base.replica is None:
        return
    count = int(base.replica.max()) + 1
    shared = find_shared_prefixes(undivided, base.options.outputs)
    trials = []
    for route in ("prefix", "sticky"):
        replica = route_requests(undivided, shared, count, route, base.options.seed)
        dense = np.unique(undivided.namespace * count + replica, return_inverse=True)[1].astype(np.int32)
        trials.append((try_change(base, trace=replace(base.trace, namespace=dense), replica=replica), route))
    gain, route = max(trials, key=lambda trial: trial[0].tokens)
    if gain.tokens > 0:
        where = (
            "the replica that holds its prefix" if route == "prefix" else "the replica of its conversation"
        )
        lever = Lever(
            kind="routing",
            title=f"Route by {'prefix' if route == 'prefix' else 'conversation'}",
            what=f"Send each request to {where}.",
            gain_tokens=gain.tokens,
            gain_ci95=gain.interval,
            change=f"a {route} policy in the router before the {count:,} replicas",
            cost="load may be less even",
            evidence="requests meet replicas that have never seen their prefix",
            limits="not where a replica is drained or overloaded: the replay knows no load",
        )
        yield Found(lever, gain)


def _namespaces_of_replicas(base: Baseline) -> Int32:
    if base.replica is None:
        return np.zeros(len(base.trace), dtype=np.int32)
    return np.unique(base.replica, return_inverse=True)[1].astype(np.int32)
