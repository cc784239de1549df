"""Why logged cached tokens differ from the replay's hits: what numbers alone prove, then replays of other servers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kvtune.analyzers.log_check.info import LogCause
from kvtune.analyzers.log_check.trials import MOST_REQUESTS, Trials
from kvtune.tokenization.trace import Bool, Int64

LATE = 0.9
"""Share of the first quarter that agrees where hits are lost late."""

FEW_HITS = 3


@dataclass(frozen=True)
class CachedTokens:
    """What is compared, R requests.

    Attributes:
        logged, predicted: int64[R] cached tokens. compared: bool[R].
        shared: int64[R], the longest prefix that each prompt shares with what stands before it in the log.
        alignment: what the predicted hits are multiples of.
    """

    logged: Int64
    predicted: Int64
    compared: Bool
    shared: Int64
    alignment: int

    @property
    def differs(self) -> Bool:
        """bool[R]."""
        differs: Bool = self.compared & (self.logged != self.predicted)
        return differs


def cached_causes(tokens: CachedTokens, trials: Trials | None) -> list[LogCause]:
    """Likely causes, the likeliest first; never empty."""
    causes = []
    unseen = tokens.compared & (tokens.logged > tokens.shared)
    found = None
    if trials is not None:
        few = min(MOST_REQUESTS, len(tokens.logged))
        if tokens.differs[:few].any():
            found = trials.best(
                tokens.logged[:few], tokens.predicted[:few], (tokens.compared & ~unseen)[:few]
            )
    if found is not None:
        causes.append(found)
    if unseen.any():
        causes.append(_unlogged_traffic(int(unseen.sum())))
    if found is None:
        causes += [cause for cause in (_alignment(tokens), _late(tokens, unseen)) if cause is not None]
    return causes or [_unknown(tokens)]


def _unlogged_traffic(requests: int) -> LogCause:
    some = "1 request" if requests == 1 else f"{requests:,} requests"
    return LogCause(
        name="unlogged_traffic",
        text=f"{some} hit more than any earlier prompt of the log shares: the cache held prompts that are not in the "
        "log (other clients, or traffic from before it begins).",
    )


def _alignment(tokens: CachedTokens) -> LogCause | None:
    """Logged hits that are multiples of something else than hits can be multiples of here."""
    hits = tokens.logged[tokens.compared & (tokens.logged > 0)]
    if len(np.unique(hits)) < FEW_HITS or not (hits % tokens.alignment).any():
        return None
    common = math.gcd(*map(int, hits))
    return LogCause(
        name="alignment",
        text=f"Logged hits are multiples of {common:,}; with the sizes given here they would be multiples of "
        f"{tokens.alignment:,}: other KV cache groups or another match unit (--groups, --match-unit, --startup-log).",
    )


def _late(tokens: CachedTokens, unseen: Bool) -> LogCause | None:
    """Hits that get lost only after a while have been evicted."""
    places = np.flatnonzero(tokens.compared & ~unseen)
    gaps = (tokens.logged - tokens.predicted)[places]
    early = gaps[: len(gaps) // 4]
    if len(early) < FEW_HITS or (gaps > 0).any() or (early == 0).mean() < LATE or not (gaps < 0).any():
        return None
    if (gaps[len(gaps) // 4 :] == 0).mean() >= (early == 0).mean():
        return None
    return LogCause(
        name="smaller_pool",
        text="Hits agree at first and get fewer later: the server's KV cache is smaller than assumed and evicts "
        "(--num-blocks, --startup-log, --metrics).",
    )


def _unknown(tokens: CachedTokens) -> LogCause:
    gaps = (tokens.logged - tokens.predicted)[tokens.differs]
    if (gaps < 0).all():
        text = "The server hit less than predicted: several servers (--replicas), a smaller KV cache (--num-blocks), "
        text += "or other KV cache groups (--groups, --startup-log)."
    else:
        text = "The server runs otherwise than assumed: another release, other KV cache groups or another match unit "
        text += "(--engine-version, --groups, --match-unit, --startup-log)."
    return LogCause(name="unknown", text=text)
