"""What a metrics page says of the traffic so far: hit rate, prompts too short to hit, and the most to gain."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvtune.analyzers.sizing.metrics import ServerMetrics


class TrafficRow(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the server started, summed over engines. Tokens unless the name says otherwise.

    Attributes:
        prompt_tokens, hit_tokens: looked up in the prefix cache, and found there.
        token_hit_rate: their ratio.
        requests: those with a prompt length in the histogram; None where the page has none.
        least_length: the shortest prompt that can hit.
        too_short: share of requests whose prompts are shorter, as [least, most]: the histogram's bins decide how far
            apart these are; None without a histogram.
        most_gain_tokens: what no match unit can gain more than: all that is computed today, less one token a request.
        most_gain_fraction: of all prompt tokens.
    """

    prompt_tokens: int
    hit_tokens: int
    token_hit_rate: float
    requests: int | None
    least_length: int
    too_short: tuple[float, float] | None
    most_gain_tokens: int
    most_gain_fraction: float


def traffic_of(metrics: ServerMetrics | None, least_length: int) -> TrafficRow | None:
    """What the page says; None where it counts no lookups.

    Args:
        least_length: the shortest prompt that can hit, tokens.
    """
    if metrics is None or not metrics.prefix_cache_queries or metrics.prefix_cache_hits is None:
        return None
    looked_up, hits = (
        metrics.prefix_cache_queries,
        min(metrics.prefix_cache_hits, metrics.prefix_cache_queries),
    )
    requests = metrics.prompt_lengths[-1][1] if metrics.prompt_lengths else None
    most = max(looked_up - hits - (requests or 0), 0)
    return TrafficRow(
        prompt_tokens=looked_up,
        hit_tokens=hits,
        token_hit_rate=hits / looked_up,
        requests=requests,
        least_length=least_length,
        too_short=_too_short(metrics.prompt_lengths, least_length),
        most_gain_tokens=most,
        most_gain_fraction=most / looked_up,
    )


def _too_short(lengths: Sequence[tuple[float, int]], least_length: int) -> tuple[float, float] | None:
    """Share of prompts below a length, between the bins' bounds."""
    if not lengths or not lengths[-1][1]:
        return None
    requests = lengths[-1][1]
    surely = max((count for bound, count in lengths if bound < least_length), default=0)
    perhaps = min((count for bound, count in lengths if bound >= least_length - 1), default=requests)
    return surely / requests, max(surely, perhaps) / requests
