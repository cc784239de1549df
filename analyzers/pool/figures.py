"""What a report says about the pool: what requests take of it, and what its size decides.

Knows the shape of these figures; neither how they are found nor how they are shown. Counts are blocks unless the
name says otherwise. Sizes of pools count the null block, as the engine's `num_gpu_blocks` does; what a request holds
does not.
"""

from __future__ import annotations

import msgspec


class CapacityPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One pool size at one unit. From `net_gain_tokens` on, None in documents that are older than these fields.

    Attributes:
        net_gain_tokens: over the current unit in the same pool, less the price of extra steps.
        refused_requests: those that can never fit this pool, or not with what they find cached in it.
    """

    num_blocks: int
    unit: int
    engine_hit_tokens: int
    evicted_blocks: int
    net_gain_tokens: int | None = None
    refused_requests: int | None = None


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A figure over the trace's requests; each is one that a request has."""

    median: int
    p90: int
    max: int


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """What requests take of the pool with one unit.

    Attributes:
        minimum_pool_blocks: the smallest pool that the trace's longest request can run in, alone and with nothing
            cached. With one block less the engine never admits it, or it preempts itself on the way.
        minimum_pool_on_hit_blocks: the smallest for it also with the shortest and with the longest hit that it can
            have: a hit that ends inside a block takes blocks of its own while it is copied.
        most_pinned: what one running request holds at most. pinned_at_end: what it gives back when it ends; also by
            kind of group. Left out where requests overlap, unless a ladder of pools is replayed.
    """

    unit: int
    minimum_pool_blocks: int
    minimum_pool_on_hit_blocks: int
    most_pinned: Spread | None = None
    pinned_at_end: Spread | None = None
    pinned_at_end_by_kind: dict[str, Spread] = {}


class FootprintBySetting(msgspec.Struct, frozen=True, kw_only=True):
    """Footprints with the current unit today and with the recommended one.

    Attributes:
        longest_request: the id of the first request with the most tokens, `longest_request_tokens` of prompt and
            output.
        enough_blocks: from this pool on nothing is evicted with any unit, so that it is as good as unlimited; None
            where requests overlap or the pool was given.
    """

    longest_request: str
    longest_request_tokens: int
    enough_blocks: int | None = None
    current: Footprint
    recommended: Footprint

    @property
    def smallest(self) -> int:
        """The smallest pool for the longest request, hits considered, with either unit."""
        return max(self.current.minimum_pool_on_hit_blocks, self.recommended.minimum_pool_on_hit_blocks)


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """How small the pool can be with one unit until it costs reuse.

    Attributes:
        share: of the hits in a pool that never evicts.
        num_blocks: the smallest pool found that keeps that share, as do all larger ones that were replayed; found
            between two rungs of the ladder by bisection, to within 1/32 of its size.
        engine_hit_tokens: hits in it.
    """

    unit: int
    share: float
    num_blocks: int
    engine_hit_tokens: int


class PoolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The unit with the largest net gain in one pool; of those within 0.5% of it the coarsest, and the one in force
    where none gains. The interval of the gain plays no part here.

    `net_gain_tokens`: over the current unit in the same pool.
    """

    num_blocks: int
    unit: int
    net_gain_tokens: int


class PoolAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What the ladder of pools shows: knees, and the best unit at each rung, smallest pool first."""

    knees: tuple[Knee, ...] = ()
    choices: tuple[PoolChoice, ...] = ()

    def largest_without(self, unit: int) -> int | None:
        """The largest pool in which another unit than this one is chosen; None where there is none."""
        return max((choice.num_blocks for choice in self.choices if choice.unit != unit), default=None)
