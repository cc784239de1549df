"""The smallest pool that one request can run in, found by running it.

The scheduler checks twice that blocks are free: for the whole prompt at admission, then for each chunk. Chunks do not
depend on the pool, so one run with blocks to spare shows every check that a smaller pool would have to pass:

    smallest pool = null block + the most, over all checks, of (blocks held then + blocks asked for)

What a check asks for is the engine's own estimate, which can be more than is then taken.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from kvtune.analyzers.bookkeeping.coordinator import Coordinator
from kvtune.analyzers.bookkeeping.engine_loop import EngineLoop
from kvtune.analyzers.bookkeeping.lookup import Hit
from kvtune.analyzers.bookkeeping.scheduler import Scheduler, make_scheduler
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.prefix_tree import PrefixPath
from kvtune.analyzers.profiles import ReleaseProfile
from kvtune.analyzers.resolver import ResolvedSizes, resolve_sizes

_MOST_UNITS = 4
"""How much of a prompt has to be cached at most until something of it is hit; drafters make it more than one unit."""


class SmallestPool(NamedTuple):
    """Blocks, the null block included.

    Attributes:
        alone: enough for the request where nothing is cached. With one less it is never admitted, or it preempts
            itself on the way.
        on_hit: enough for it also with the shortest hit that it can have, and with the longest, that on its own
            prompt. Often more than `alone`: a hit that ends inside a block is copied before it is written on, and
            its states stay while the next are written. Hits in between seldom need more than both.
    """

    alone: int
    on_hit: int


def smallest_pool(
    config: EngineConfig, profile: ReleaseProfile, num_prompt_tokens: int, num_output_tokens: int
) -> SmallestPool:
    """The smallest pools for a request of these lengths; `config.num_blocks` plays no part.

    Raises:
        EngineRefusal: the engine would not start with this configuration.
    """
    engine = _DemandRun(config, profile)
    alone, _ = engine.run(num_prompt_tokens, num_output_tokens)
    longest, _ = engine.run(num_prompt_tokens, num_output_tokens)
    unit = engine.sizes.hash_block_size
    shortest, hit, cached = 0, 0, 1
    while not hit and cached <= min(_MOST_UNITS * unit, num_prompt_tokens - 1):
        cached += unit
        engine = _DemandRun(config, profile)
        engine.run(cached, 1)
        shortest, hit = engine.run(num_prompt_tokens, num_output_tokens)
    return SmallestPool(alone, max(alone, longest, shortest))


class _DemandRun:
    """One engine with blocks to spare, and prompts of which each begins with the shorter ones."""

    def __init__(self, config: EngineConfig, profile: ReleaseProfile) -> None:
        config = replace(config, num_blocks=None)
        self.sizes = resolve_sizes(config, profile)
        self._coordinator = _DemandCoordinator(config, profile, self.sizes)
        self._scheduler = make_scheduler(config, profile, self.sizes, coordinator=self._coordinator)
        self._num_requests = 0

    def run(self, num_prompt_tokens: int, num_output_tokens: int) -> tuple[int, int]:
        """Run one more request to its end: the pool that its checks would have needed, and what it hit."""
        sequence = Sequence(
            self._num_requests,
            PrefixPath([num_prompt_tokens], [0]),
            num_prompt_tokens,
            num_output_tokens,
            lookahead=self.sizes.hash_lookahead_tokens,
        )
        self._num_requests += 1
        self._coordinator.demand = 0
        self._scheduler.add_request(sequence)
        loop = EngineLoop(self._scheduler)
        one_batch = type(self._scheduler) is Scheduler
        while loop.has_work:
            loop.step()
            if one_batch and (quiet := self._scheduler.quiet_decode_steps()):
                self._scheduler.pass_decode_steps(quiet)
        return self._coordinator.demand + 1, sequence.first_hit


class _DemandCoordinator(Coordinator):
    """Skips no check, lets each pass, and notes the largest `demand`: blocks held and asked for."""

    def __init__(self, config: EngineConfig, profile: ReleaseProfile, sizes: ResolvedSizes) -> None:
        super().__init__(config, profile, sizes, roomy=True)
        self._blocks_besides = self._all_free
        self.demand = 0

    def _count(self, sequence: Sequence, hit: Hit, slots: int, main: int, start: int, admission: bool) -> int:
        needed = super()._count(sequence, hit, slots, main, start, admission)
        self.demand = max(self.demand, self._all_free - self.pool.num_free + needed)
        return needed
