"""What requests take of the pool: the smallest pool for the longest one, and what a running one keeps from others.

Knows lengths and replay results; not how many bytes a block has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from msgspec.structs import replace

from kvtune.analyzers.bookkeeping.smallest_pool import SmallestPool, smallest_pool
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.pool.figures import Footprint, FootprintBySetting, Spread
from kvtune.analyzers.pool.units import ReplayedUnits
from kvtune.analyzers.profiles import profile_for
from kvtune.analyzers.replay import ReplayInput
from kvtune.tokenization.trace import Int64


def pool_for(config: EngineConfig, inputs: ReplayInput, request: int) -> SmallestPool:
    """The smallest pools for one of the requests, with the unit of `config`."""
    return _pool_for_lengths(config, int(inputs.prompt_tokens[request]), int(inputs.output_tokens[request]))


@lru_cache(maxsize=1024)
def _pool_for_lengths(config: EngineConfig, prompt_tokens: int, output_tokens: int) -> SmallestPool:
    """Of refused requests many have the same lengths, and the request is run to find out."""
    return smallest_pool(config, profile_for(config.version).profile, prompt_tokens, output_tokens)


def footprints(units: ReplayedUnits, ids: Sequence[str], *, replay_again: bool) -> FootprintBySetting:
    """What requests take with the current unit and with the recommended one.

    Args:
        ids: the requests'. replay_again: also say what they pin where that needs other replays, as requests overlap.
    """
    pins = replay_again or not units.overlap
    inputs = units.task.inputs
    tokens = inputs.prompt_tokens + inputs.output_tokens
    longest = int(np.argmax(tokens))
    found = {unit: _footprint(unit, units, longest, pins=pins) for unit in units.shown}
    current, recommended = found[units.current_unit], found[units.recommended_unit]
    enough = None
    if units.config.num_blocks is None and not units.overlap:
        enough = max(units.results[unit].used_blocks for unit in units.match_units) + 1
    return FootprintBySetting(
        longest_request=ids[longest],
        longest_request_tokens=int(tokens[longest]),
        enough_blocks=enough,
        current=current,
        recommended=recommended,
    )


def _footprint(unit: int, units: ReplayedUnits, longest: int, *, pins: bool) -> Footprint:
    pool = pool_for(units.config_of(unit), units.task.inputs, longest)
    smallest = Footprint(unit=unit, minimum_pool_blocks=pool.alone, minimum_pool_on_hit_blocks=pool.on_hit)
    if not pins:
        return smallest
    result = units.one_at_a_time(unit)
    assert result.most_pinned is not None
    ran = result.most_pinned > 0
    by_kind = {kind: held[ran] for kind, held in result.pinned_at_end.items()}
    return replace(
        smallest,
        most_pinned=_spread(result.most_pinned[ran]),
        pinned_at_end=_spread(np.sum(list(by_kind.values()), axis=0)),
        pinned_at_end_by_kind={kind: _spread(held) for kind, held in by_kind.items()},
    )


def _spread(blocks: Int64) -> Spread:
    if not len(blocks):
        return Spread(median=0, p90=0, max=0)
    median, p90, most = np.percentile(blocks, (50, 90, 100), method="inverted_cdf").tolist()
    return Spread(median=int(median), p90=int(p90), max=int(most))
