"""What the drafter costs in hits: the advised match unit replayed once more, without the drafter."""

from __future__ import annotations

from dataclasses import replace

from kvtune.analyzers.analysis import Analysis
from kvtune.analyzers.drafting import lookahead_or_drop
from kvtune.analyzers.profiles import profile_for


def drafter_caveat(found: Analysis, unit: int) -> tuple[str, ...]:
    """A sentence on the hit tokens that the drafter takes; none where it changes no hit by its nature.

    Args:
        unit: the effective match unit that is advised. Blocks and retention stay as they are with the drafter.
    """
    config = found.config_on(unit)
    drafter = config.drafter
    if drafter is None or not config.enable_prefix_caching:
        return ()
    lookahead, drops = lookahead_or_drop(config, profile_for(config.version).profile)
    if not lookahead and not drops:
        return ()
    hits = int(found.result_on(unit).hit_tokens.sum())
    without = int(found.task.run(replace(config, drafter=None)).hit_tokens.sum())
    total = int(found.trace.prompt_tokens.sum())
    if without == hits:
        return (f"Without the drafter ({drafter.method}) this match unit reuses as much.",)
    more = "more" if without > hits else "fewer"
    return (
        f"Without the drafter ({drafter.method}) this match unit reuses {abs(without - hits):,} tokens {more}: "
        f"{without / total:.1%} of the prompt tokens, not {hits / total:.1%}.",
    )
