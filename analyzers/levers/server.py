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


@dataclass(frozen=True)
class OtherServing:
    """The same server with one flag changed that gives its groups other blocks. `what`: such as "KV cache dtype"."""

    what: str
    flag: str
    config: EngineConfig
    cost: str


def retention(base: Baseline) -> Iterator[Found]:
    """Keep every state that a chunk end leaves, alone and with smaller steps, which leave more of them."""
    config = base.config
    if all(group.kind not in ("mamba", "sliding_window") for group in config.groups):
        return
    dense = with_setting(config, retention_interval=None)
    trials: list[tuple[str, int | None, Gain]] = []
    if config.retention_interval is not None:
        trials.append(
            (
                "Keep the state of every block boundary where a step ended.",
                None,
                try_change(base, config=dense),
            )
        )
    block = max(group.block_size for group in config.groups)
    for budget in _BUDGETS:
        if block <= budget < config.max_num_batched_tokens:
            gain = try_change(base, config=with_setting(dense, max_num_batched_tokens=budget))
            trials.append(
                (f"Keep every block-boundary state, and take steps of {budget:,} tokens.", budget, gain)
            )
    best = max(trials, key=lambda trial: trial[2].tokens, default=None)
    if best is None or best[2].tokens <= 0:
        return
    what, budget_used, gain = best
    flags = ["--prefix-cache-retention-interval ''"]
    flags += [f"--max-num-batched-tokens {budget_used}"] if budget_used else []
    smaller = f", with steps of {budget_used:,}" if budget_used else ""
    lever = Lever(
        kind="retention",
        title=f"Keep every state that a step leaves{smaller}",
        what=what,
        gain_tokens=gain.tokens,
        gain_ci95=gain.interval,
        flags=tuple(flags),
        cost="more states in the pool: measure it with --num-blocks"
        + ("; smaller steps, whose extra steps are already taken off the gain" if budget_used else ""),
        evidence="prompts part where no state was kept, and steps end before those places",
        limits="not in a pool that is full already: each kept state takes a block of its group",
    )
    yield Found(lever, gain)


def shared_prefix_checkpoint(base: Baseline) -> Iterator[Found]:
    """A state at the junction itself, not at the block boundary below it; only with a drafter."""
    if base.config.drafter is None or base.config.mamba_shared_prefix_checkpoint:
        return
    gain = try_change(base, config=with_setting(base.config, mamba_shared_prefix_checkpoint=True))
    if gain.tokens > 0:
        lever = Lever(
            kind="shared_prefix_checkpoint",
            title="Keep a state where prompts part",
            what="Let a step end where prompts part, and keep the state there.",
            gain_tokens=gain.tokens,
            gain_ci95=gain.interval,
            flags=("--enable-mamba-shared-prefix-checkpoint",),
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
