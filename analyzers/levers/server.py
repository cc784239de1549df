"""Levers that are settings of the server: retention, step budget, shared-prefix checkpoints, pool size."""

from __future__ import annotations

from collections.abc import Iterator

from kvtune.analyzers.levers.trial import Baseline, Gain, try_change, with_setting
from kvtune.analyzers.report import Lever

_BUDGETS = (1024, 2048, 4096)


def retention(base: Baseline) -> Iterator[Lever]:
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
    yield Lever(
        kind="retention",
        what=what,
        gain_tokens=gain.tokens,
        gain_ci95=gain.interval,
        flags=tuple(flags),
        cost="more states in the pool: measure it with --num-blocks"
        + ("; smaller steps, whose extra steps are already taken off the gain" if budget_used else ""),
    )


def shared_prefix_checkpoint(base: Baseline) -> Iterator[Lever]:
    """A state at the junction itself, not at the block boundary below it; only with a drafter."""
    if base.config.drafter is None or base.config.mamba_shared_prefix_checkpoint:
        return
    gain = try_change(base, config=with_setting(base.config, mamba_shared_prefix_checkpoint=True))
    if gain.tokens > 0:
        yield Lever(
            kind="shared_prefix_checkpoint",
            what="Let a step end where prompts part, and keep the state there.",
            gain_tokens=gain.tokens,
            gain_ci95=gain.interval,
            flags=("--enable-mamba-shared-prefix-checkpoint",),
            cost="one more step for each new junction, already taken off the gain",
        )


def pool_size(base: Baseline) -> Iterator[Lever]:
    """Twice the blocks, where blocks are evicted."""
    blocks = base.config.num_blocks
    if blocks is None or not int(base.result.evicted_blocks.sum()):
        return
    gain = try_change(base, config=with_setting(base.config, num_blocks=2 * blocks))
    if gain.tokens > 0:
        yield Lever(
            kind="pool_size",
            what=f"Give the pool {2 * blocks:,} blocks instead of {blocks:,}.",
            gain_tokens=gain.tokens,
            gain_ci95=gain.interval,
            change="more GPU memory for the KV cache, a smaller KV dtype, or another replica",
            cost=f"the memory of {blocks:,} blocks",
        )
