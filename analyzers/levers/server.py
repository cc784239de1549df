"""Levers that are settings of the server: retention, step budget, shared-prefix checkpoints, pool size, dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.levers.trial import Baseline, Found, Gain, try_change, with_setting
from kvtune.analyzers.profiles import profile_for
from kvtune.analyzers.refusal import EngineRefusal
from kvtune.analyzers.report import Lever
from kvtune.analyzers.units import unit_candidates

_BUDGETS = (1024, 2048, 4096)
_MOST_UNITS = 3
_SPARSE = (4, 16)
"""Sparse retention intervals tried, in scheduler blocks."""


@dataclass(frozen=True)
class OtherServing:
    """The same server with one flag changed that gives its groups other blocks. `what`: such as "KV cache dtype"."""

    what: str
    flag: str
    config: EngineConfig
    cost: str


@dataclass(frozen=True)
class _Retained:
    """A retention interval (None: every state), a step budget where that changes too, and what they bring."""

    interval: int | None
    budget: int | None
    gain: Gain


def retention(base: Baseline) -> Iterator[Found]:
    """Keep every state that a chunk end leaves, alone and with smaller steps, which leave more of them; where blocks
    are evicted, keep fewer."""
    config = base.config
    if all(group.kind not in ("mamba", "sliding_window") for group in config.groups):
        return
    trials = [_retained(base, interval, None) for interval in _intervals(base)]
    block = max(group.block_size for group in config.groups)
    budgets = [budget for budget in _BUDGETS if block <= budget < config.max_num_batched_tokens]
    trials += [_retained(base, None, budget) for budget in budgets]
    best = max(trials, key=lambda trial: trial.gain.tokens, default=None)
    if best is not None and best.gain.tokens > 0:
        yield Found(_retention_lever(base, best), best.gain)


def _intervals(base: Baseline) -> list[int | None]:
    """Retention intervals other than the current one: dense, and sparse ones where blocks are evicted."""
    block = base.result.sizes.scheduler_block_size
    sparse = [0, *(factor * block for factor in _SPARSE)] if int(base.result.evicted_blocks.sum()) else []
    return [interval for interval in (None, *sparse) if interval != base.config.retention_interval]


def _retained(base: Baseline, interval: int | None, budget: int | None) -> _Retained:
    config = with_setting(base.config, retention_interval=interval)
    if budget is not None:
        config = with_setting(config, max_num_batched_tokens=budget)
    return _Retained(interval, budget, try_change(base, config=config))


def _retention_lever(base: Baseline, best: _Retained) -> Lever:
    setting = profile_for(base.config.version).profile.retention_setting(best.interval)
    is_flag = setting.startswith("--")
    change_interval = best.interval != base.config.retention_interval
    flags = [setting] if is_flag and change_interval else []
    flags += [f"--max-num-batched-tokens {best.budget}"] if best.budget else []
    smaller = f", with steps of {best.budget:,}" if best.budget else ""
    dense = best.interval is None
    if not change_interval:
        title, what = (
            f"Take steps of {best.budget:,} tokens",
            "Smaller steps leave more states to resume from.",
        )
    elif dense:
        title = f"Keep every state that a step leaves{smaller}"
        what = f"Keep the state of every block boundary where a step ended{smaller}."
    else:
        where = f"every {best.interval:,} tokens, " if best.interval else "only "
        title = f"Keep fewer states: retention interval {best.interval:,}"
        what = f"Keep states {where}where prompts diverge and where they end: the pool evicts less."
    return Lever(
        kind="retention",
        title=title,
        what=what,
        gain_tokens=best.gain.tokens,
        gain_ci95=best.gain.interval,
        flags=tuple(flags) or None,
        change=None if is_flag or not change_interval else f"set {setting} in the server's environment",
        cost=(
            ("more states in the pool: measure it with --num-blocks" if dense else "none")
            + ("; smaller steps, whose extra steps are already taken off the gain" if best.budget else "")
        ),
        evidence="prompts diverge where no state was kept, and steps end before those places"
        if dense
        else f"{int(base.result.evicted_blocks.sum()):,} blocks are evicted",
        limits="not in a pool that is full already: each kept state takes a block of its group"
        if dense
        else "not where later prompts resume at positions that only a dense server keeps",
    )


def shared_prefix_checkpoint(base: Baseline) -> Iterator[Found]:
    """A state at the junction itself, not at the block boundary below it; only with a drafter, and in a release that
    has the flag."""
    flag = profile_for(base.config.version).profile.junction_checkpoint_flag
    if flag is None or base.config.drafter is None or base.config.mamba_shared_prefix_checkpoint:
        return
    gain = try_change(base, config=with_setting(base.config, mamba_shared_prefix_checkpoint=True))
    if gain.tokens > 0:
        lever = Lever(
            kind="shared_prefix_checkpoint",
            title="Keep a state where prompts diverge",
            what="Let a step end where prompts diverge, and keep the state there.",
            gain_tokens=gain.tokens,
            gain_ci95=gain.interval,
            flags=(flag,),
            cost="one more step for each new junction, already taken off the gain",
        )
        yield Found(lever, gain)


def pool_size(base: Baseline) -> Iterator[Found]:
    """Twice the blocks, where blocks are evicted."""
    blocks, evicted = base.config.num_blocks, int(base.result.evicted_blocks.sum())
    if blocks is None or not evicted:
        return
    gain = try_change(base, config=with_setting(base.config, num_blocks=2 * blocks))
    if gain.tokens > 0:
        lever = Lever(
            kind="pool_size",
            title=f"Give the pool {2 * blocks:,} blocks",
            what=f"Give the pool {2 * blocks:,} blocks instead of {blocks:,}.",
            gain_tokens=gain.tokens,
            gain_ci95=gain.interval,
            change="more GPU memory for the KV cache, a smaller KV dtype, or another replica",
            cost=f"the memory of {blocks:,} blocks",
            evidence=f"{evicted:,} blocks are evicted",
        )
        yield Found(lever, gain)


def other_blocks(base: Baseline, others: Sequence[OtherServing]) -> Iterator[Found]:
    """Another dtype of the KV cache or of the state, through the block that it gives, each with its best unit."""
    today = max(group.block_size for group in base.config.groups)
    for other in others:
        best: tuple[Gain, int | None] | None = None
        for unit in _units(other.config, base.config.match_unit):
            try:
                gain = try_change(base, config=with_setting(other.config, match_unit=unit))
            except EngineRefusal:
                continue
            if best is None or gain.tokens > best[0].tokens:
                best = gain, unit
        if best is None or best[0].tokens <= 0:
            continue
        gain, unit = best
        block = max(group.block_size for group in other.config.groups)
        lever = Lever(
            kind="dtype",
            title=f"Serve with {other.flag}: blocks of {block:,}",
            what=f"Another {other.what}: {other.flag} gives blocks of {block:,} tokens instead of {today:,}.",
            gain_tokens=gain.tokens,
            gain_ci95=gain.interval,
            flags=(other.flag, *([f"--prefix-match-unit {unit}"] if unit is not None else [])),
            cost=other.cost,
            evidence=f"a hit needs at least one block of {today:,} tokens that prompts share"
            if block < today
            else "",
            limits="its effect on speed, memory and answers is not part of the replay",
        )
        yield Found(lever, gain)


def legal_units(config: EngineConfig) -> list[int]:
    """Match units that the server takes and that give it a grid of their own, coarsest first."""
    profile = profile_for(config.version).profile
    return [
        row.unit for row in unit_candidates(config, profile, None) if row.valid and row.swept and not row.rule
    ]


def _units(config: EngineConfig, unit: int | None) -> list[int | None]:
    """The default, the current unit where it is legal, and a few coarse ones."""
    legal = legal_units(config)
    return list(dict.fromkeys([None, *([unit] if unit in legal else []), *legal[1 : 1 + _MOST_UNITS]]))
