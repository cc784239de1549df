"""Try every lever on top of the recommendation, rank what gains, and replay the best ones together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from kvtune.analyzers.decision.objective import LEAST_NET_GAIN
from kvtune.analyzers.levers.combine import combine
from kvtune.analyzers.levers.double_bos import double_bos
from kvtune.analyzers.levers.heads import common_heads
from kvtune.analyzers.levers.outputs import output_reuse
from kvtune.analyzers.levers.pad import pad, trim
from kvtune.analyzers.levers.prime import prime
from kvtune.analyzers.levers.reorder import reorder
from kvtune.analyzers.levers.server import (
    OtherServing,
    legal_units,
    other_blocks,
    pool_size,
    retention,
    shared_prefix_checkpoint,
)
from kvtune.analyzers.levers.sharing import isolation_price, routing
from kvtune.analyzers.levers.template import template
from kvtune.analyzers.levers.tool_order import tool_order
from kvtune.analyzers.levers.trial import Baseline, Found
from kvtune.analyzers.levers.wording import Wording
from kvtune.analyzers.sweep import Progress
from kvtune.tokenization.trace import TokenTrace

SMALLEST_SHARE = 0.001
"""Levers that gain less than this fraction of the prompt tokens are left out."""

_TRIM_FRACTION = 20

_WORTH_A_SWEEP = 10
"""Times the floor: a culprit that costs less is not replayed with every match unit."""


def find_levers(
    base: Baseline,
    undivided: TokenTrace,
    progress: Progress,
    wording: Wording | None = None,
    others: Sequence[OtherServing] = (),
) -> list[Found]:
    """Levers by falling gain; gains are on top of the recommended unit and are not to be added up.

    Args:
        undivided: the trace without namespaces for replicas. others: the server under other dtypes.
    """
    floor = SMALLEST_SHARE * int(base.trace.prompt_tokens.sum())
    found: list[Found] = []
    steps = _steps(base, undivided, wording or Wording(), others)
    for number, step in enumerate(steps):
        progress("levers", number, len(steps) + 1)
        found += [lever for lever in step() if lever.lever.gain_tokens >= floor]
        found = _ranked(found)
    progress("levers", len(steps), len(steps) + 1)
    together = combine(base, found, floor)
    progress("levers", len(steps) + 1, len(steps) + 1)
    return _ranked([*found, *([together] if together is not None else [])])


def find_culprits(base: Baseline, wording: Wording) -> list[Found]:
    """What applications do to their prompts that costs at least 0.5% of the prompt tokens: varying text ahead of common
    text, tools in another order, history written anew. Each is looked for in the trace, and replayed where it is seen.
    """
    if base.trace.span > 1:
        return []
    floor = LEAST_NET_GAIN * int(base.trace.prompt_tokens.sum())
    rewritten = template(base, wording, units_from=_WORTH_A_SWEEP * floor)
    found = [*_some(reorder(base, wording, least=floor)), *_some(tool_order(base)), *rewritten]
    return _ranked([culprit for culprit in found if culprit.lever.gain_tokens >= floor])


def _ranked(found: list[Found]) -> list[Found]:
    """By falling gain. Changed traces are large: only the best lever keeps what it leads to, to build upon."""
    ranked = sorted(found, key=lambda one: (-one.lever.gain_tokens, one.lever.kind, one.lever.what))
    best = next((one for one in ranked if one.lever.advice and one.gain.after is not None), None)
    return [one if one is best else replace(one, gain=replace(one.gain, after=None)) for one in ranked]


def _steps(
    base: Baseline, undivided: TokenTrace, wording: Wording, others: Sequence[OtherServing]
) -> list[Callable[[], Iterator[Found]]]:
    of_text: list[Callable[[], Iterator[Found]]] = [
        lambda: _some(reorder(base, wording)),
        lambda: _some(tool_order(base)),
        lambda: iter(template(base, wording)),
        lambda: _some(double_bos(base)),
        lambda: _some(output_reuse(base)),
        lambda: _of_heads(base),
    ]
    of_server: list[Callable[[], Iterator[Found]]] = [
        lambda: retention(base),
        lambda: shared_prefix_checkpoint(base),
        lambda: pool_size(base),
        lambda: other_blocks(base, others),
        lambda: isolation_price(base, undivided),
        lambda: routing(base, undivided),
    ]
    return of_text + of_server if base.trace.span == 1 else of_server


def _some(found: Found | None) -> Iterator[Found]:
    return iter(() if found is None else (found,))


def _of_heads(base: Baseline) -> Iterator[Found]:
    block = base.result.sizes.scheduler_block_size
    units = legal_units(base.config)
    for head in common_heads(base.trace, base.shared.paths, base.result.hit_tokens, base.shared.shared):
        padded = [pad(base, head, boundary) for boundary in sorted({base.grid, block})]
        best = max((one for one in padded if one), key=lambda one: one.gain.tokens, default=None)
        for found in (
            prime(base, head, units),
            best,
            trim(base, head, block, head.tokens // _TRIM_FRACTION),
        ):
            if found is not None:
                yield found
