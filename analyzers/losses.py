"""Where shared tokens went that were not reused: each limit's share per request, summing exactly to what was shared.

A cascade of lengths, each at most the one before; a loss is the step from one to the next:

    shared      what the prompt shares with anything cached before it
      granularity         down to a multiple of the grid that hits land on
    on grid
      window              what a sliding window's or local chunk's kept blocks do not reach
    in windows
      no_recurrent_state  no Mamba state (nor tail of an attention block) was ever kept there
    ever kept
      in_flight           kept by an earlier request, but not yet when this one was admitted
    kept in time
      evicted             kept in time, and handed out again before this request came
    there
      speculative_drop    the unit that a drafter gives up, or whose next tokens its hashes ask for
    hit

All lengths but the first come out of one recorded replay with the setting in question: at a request's first
admission its lookup is repeated with the drop lifted, with keys that were never evicted, and, after the run, with
all keys that earlier requests ever left (`bookkeeping.recorder`). They say what stood in the way in this run, not
what another run would have done. A refused prompt's sharing counts as evicted: the pool is too small for it.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.loss_kinds import LOSSES
from kvtune.analyzers.replay import Arrivals, Limits, ReplayInput, ReplayResult, replay
from kvtune.analyzers.step_times import ASSUMED, StepTimes
from kvtune.tokenization.trace import Int32, Int64


def losses_by_request(
    config: EngineConfig,
    inputs: ReplayInput,
    replica: Int32 | None,
    shared: Int64,
    arrivals: Arrivals = "sequential",
    result: ReplayResult | None = None,
    step_times: StepTimes = ASSUMED,
) -> dict[str, Int64]:
    """Losses under `config`, int64[R] tokens each, by the report's names; with the hits they sum to `shared`.

    Args:
        step_times: what steps take, with `arrivals="trace"`.
        result: the same replay without a record, where it is known: it may say all that there is to say.
        replica: int32[R], the cache that each request meets; None: one for all.
        shared: int64[R], from `find_shared_prefixes`, under the outputs that `inputs` holds.
    """
    if result is not None and _only_states_were_missing(config, result, arrivals):
        return _missing_states(shared, result)
    if replica is None:
        return _losses(config, inputs, shared, arrivals, step_times)
    losses = {name: np.zeros(len(shared), dtype=np.int64) for name in LOSSES}
    for number in np.unique(replica):
        indices = np.flatnonzero(replica == number)
        part = _losses(config, inputs.subset(indices), shared[indices], arrivals, step_times)
        for name, values in part.items():
            losses[name][indices] = values
    return losses


def _only_states_were_missing(config: EngineConfig, result: ReplayResult, arrivals: Arrivals) -> bool:
    """Whether nothing but the grid and missing Mamba states can have stood in the way: one request after the other,
    nothing evicted or refused, no window, no drafter."""
    return (
        arrivals == "sequential"
        and config.enable_prefix_caching
        and config.drafter is None
        and {group.kind for group in config.groups} == {"full", "mamba"}
        and not result.refused
        and not result.evicted_blocks.any()
    )


def _missing_states(shared: Int64, result: ReplayResult) -> dict[str, Int64]:
    grid = result.sizes.cache_hit_alignment
    on_grid = np.maximum(shared // grid * grid, result.hit_tokens)
    losses = {name: np.zeros_like(shared) for name in LOSSES}
    return losses | {"granularity": shared - on_grid, "no_recurrent_state": on_grid - result.hit_tokens}


def _losses(
    config: EngineConfig, inputs: ReplayInput, shared: Int64, arrivals: Arrivals, step_times: StepTimes
) -> dict[str, Int64]:
    result = replay(config, inputs, arrivals=arrivals, step_times=step_times, record=True)
    assert result.limits is not None
    return split_losses(config, inputs, shared, result, result.limits)


def split_losses(
    config: EngineConfig, inputs: ReplayInput, shared: Int64, result: ReplayResult, limits: Limits
) -> dict[str, Int64]:
    """The cascade of one recorded replay."""
    hit, grid = result.hit_tokens, result.sizes.cache_hit_alignment
    kinds = {group.kind for group in config.groups}
    on_grid = np.maximum(shared // grid * grid, hit)
    provable = _provable(inputs, shared, grid, result.sizes.hash_lookahead_tokens)
    bound = np.clip(provable, hit, on_grid)
    in_windows = bound
    if kinds & {"sliding_window", "chunked_local"}:
        in_windows = np.where(limits.seen, np.clip(limits.within_windows, hit, bound), bound)
    ever = np.where(limits.seen, np.clip(limits.ever, hit, in_windows), in_windows)
    in_time = np.clip(limits.without_evictions, hit, ever)
    there = np.clip(limits.without_drop, hit, in_time)
    never = in_windows - ever
    losses = {
        "granularity": shared - on_grid,
        "window": bound - in_windows,
        "no_recurrent_state": never,
        "evicted": in_time - there + np.where(limits.seen, 0, ever - in_time),
        "in_flight": np.where(limits.seen, ever - in_time, 0),
        "speculative_drop": there - hit + on_grid - bound,
    }
    if "mamba" not in kinds:
        # Attention keeps every block: what is missing was left out by a window, or never computed for want of blocks.
        losses["no_recurrent_state"] = np.zeros_like(never)
        losses["window" if "sliding_window" in kinds else "evicted"] += never
    return losses


def _provable(inputs: ReplayInput, shared: Int64, grid: int, lookahead: int) -> Int64:
    """How far hashes that look ahead can prove a shared prefix: also with the last token, which is never reused."""
    if not lookahead:
        return shared // grid * grid
    reach: Int64 = np.where(_wholly_shared(inputs), inputs.prompt_tokens, shared) - lookahead
    return np.maximum(reach // grid * grid, 0)


def _wholly_shared(inputs: ReplayInput) -> npt.NDArray[np.bool_]:
    """bool[R]: an earlier request has the whole prompt, so that the prefix of that length bears its name."""
    named: set[int] = set()
    shared = []
    for path, length in zip(inputs.paths, inputs.prompt_tokens.tolist(), strict=True):
        shared.append(path.bases[bisect_left(path.ends, length)] in named)
        named.update(path.bases)
    return np.array(shared, dtype=bool)
