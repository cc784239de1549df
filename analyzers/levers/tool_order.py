"""Lever: write the same tools in the same order.

Clients that keep tools in a map write them in another order (or their fields) for every request; all text after the
first difference is then new. Requests with equal tools are known by `TokenTrace.tool_sets`; the change gives each
the tokens that the first of them had.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvtune.analyzers.levers.edits import with_prompts
from kvtune.analyzers.levers.joint import on_best_unit
from kvtune.analyzers.levers.trial import Baseline, Found, try_change
from kvtune.analyzers.report import Lever
from kvtune.tokenization.encoding.buffer import SpillingArrays
from kvtune.tokenization.trace import TokenTrace, UInt32

_STRIDE = 8
_MOST_TOKENS_BEFORE = 1 << 16


def tool_order(base: Baseline) -> Found | None:
    """The gain of one order for equal tools; None where tools are always written alike, or it gains nothing."""
    if base.trace.tool_sets is None:
        return None
    prompts, changed, variants, sets = _in_first_order(base.trace, base.trace.tool_sets)
    if not changed:
        return None
    pair = on_best_unit(base, try_change(base, trace=with_prompts(base.trace, prompts)))
    gain = pair.gain
    if gain.tokens <= 0:
        return None
    return pair.found(
        Lever(
            kind="tool_order",
            title="Write the tools in one order",
            what="Sort tools, and the fields inside them, before they are sent, so that equal tools are equal text.",
            gain_tokens=gain.tokens,
            gain_ci95=gain.interval,
            change="sort tools by name and dump them with sorted keys (json.dumps(..., sort_keys=True) or the like)",
            cost="none",
            evidence=(
                f"{sets:,} different tool {'set is' if sets == 1 else 'sets are'} written in {variants:,} ways; "
                f"{changed:,} requests have their tools in another order than the first with the same tools"
            ),
            limits="not where a model was trained on one order of its tools",
        )
    )


def _in_first_order(trace: TokenTrace, tool_sets: Sequence[str | None]) -> tuple[list[UInt32], int, int, int]:
    """All prompts with the tools as they were first written; how many that changes; serialisations; sets."""
    first: dict[tuple[int, str], UInt32] = {}
    ways: set[tuple[str, bytes]] = set()
    prompts = []
    arrays = SpillingArrays()
    changed = 0
    for request, tools in enumerate(tool_sets):
        prompt = trace.prompt(request)
        region = _region(trace, request) if tools is not None else None
        if region is not None and tools is not None:
            start, end = region
            own = prompt[start:end]
            ways.add((tools, own.tobytes()))
            wanted = first.setdefault((int(trace.namespace[request]), tools), own)
            if not np.array_equal(wanted, own):
                prompt = arrays.keep(np.concatenate((prompt[:start], wanted, prompt[end:])))
                changed += 1
        prompts.append(prompt)
    return prompts, changed, len(ways), len({tools for tools, _ in ways})


def _region(trace: TokenTrace, request: int) -> tuple[int, int] | None:
    """The tokens of the tools, which stand together; None where the prompt has none."""

    def inside(position: int) -> bool:
        return trace.parts.part_of(request, position) == "tools"

    length = int(trace.prompt_tokens[request])
    seen = next((at for at in range(0, min(length, _MOST_TOKENS_BEFORE), _STRIDE) if inside(at)), None)
    if seen is None:
        return None
    start = seen
    while start > 0 and inside(start - 1):
        start -= 1
    step, end = 1, seen + 1
    while end + step <= length and inside(end + step - 1):
        end, step = end + step, step * 2
    while step:
        if end + step <= length and inside(end + step - 1):
            end += step
        step //= 2
    return start, end
