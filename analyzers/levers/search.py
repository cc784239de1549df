"""Try every lever on top of the recommendation and rank what gains."""

from __future__ import annotations

from collections.abc import Iterator

from kvtune.analyzers.levers.heads import find_heads
from kvtune.analyzers.levers.pad import pad, trim
from kvtune.analyzers.levers.prime import prime
from kvtune.analyzers.levers.server import pool_size, retention, shared_prefix_checkpoint
from kvtune.analyzers.levers.sharing import isolation_price, routing
from kvtune.analyzers.levers.trial import Baseline
from kvtune.analyzers.report import Lever
from kvtune.analyzers.shared import SharedPrefixes
from kvtune.analyzers.sweep import Progress
from kvtune.tokenization.trace import TokenTrace

SMALLEST_SHARE = 0.001
"""Levers that gain less than this fraction of the prompt tokens are left out."""

_TRIM_FRACTION = 20


def find_levers(
    base: Baseline, shared: SharedPrefixes, undivided: TokenTrace, progress: Progress
) -> tuple[Lever, ...]:
    """Levers by falling gain; gains are on top of the recommended unit and are not to be added up.

    Args:
        shared: of the base's trace; undivided: the trace without namespaces for replicas.
    """
    found: list[Lever] = []
    for number, lever in enumerate(_all(base, shared, undivided)):
        progress("levers", number, number + 1)
        found.append(lever)
    floor = SMALLEST_SHARE * int(base.trace.prompt_tokens.sum())
    worth = [lever for lever in found if lever.gain_tokens >= floor]
    return tuple(sorted(worth, key=lambda lever: (-lever.gain_tokens, lever.kind, lever.what)))


def _all(base: Baseline, shared: SharedPrefixes, undivided: TokenTrace) -> Iterator[Lever]:
    if base.trace.span == 1:
        yield from _of_heads(base, shared)
    yield from retention(base)
    yield from shared_prefix_checkpoint(base)
    yield from pool_size(base)
    yield from isolation_price(base, undivided)
    yield from routing(base, undivided)


def _of_heads(base: Baseline, shared: SharedPrefixes) -> Iterator[Lever]:
    block = base.result.sizes.scheduler_block_size
    for head in find_heads(shared.paths, base.result.hit_tokens, shared.shared):
        for lever in (
            prime(base, head),
            pad(base, head, block),
            trim(base, head, block, head.tokens // _TRIM_FRACTION),
        ):
            if lever is not None:
                yield lever
