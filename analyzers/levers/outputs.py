"""Lever: answers as part of the next prompt, by the ids that the engine generated.

The engine keeps generated tokens in its cache. They are reused where the next turn repeats them token for token:
where the client sends ids back, or where the template renders an answer as it was generated.
"""

from __future__ import annotations

from dataclasses import replace

from kvtune.analyzers.levers.trial import Baseline, Found, try_change
from kvtune.analyzers.report import Lever


def output_reuse(base: Baseline) -> Found | None:
    """What recorded answers bring when they stay in the cache; None where there are none or they already count."""
    if base.trace.outputs is None or base.options.outputs == "recorded":
        return None
    gain = try_change(base, options=replace(base.options, outputs="recorded"))
    if gain.tokens <= 0:
        return None
    lever = Lever(
        kind="output_reuse",
        title="Count answers in the cache (--outputs recorded)",
        what=(
            "Answers stay in the cache, and the next turn repeats them: this is what the recorded ones bring, "
            "where their text gives the ids that were generated."
        ),
        gain_tokens=gain.tokens,
        gain_ci95=gain.interval,
        change="nothing to set; send generated token ids back where text is tokenized otherwise than it was generated",
        cost="none: the engine does so already, and the replay left it out (--outputs none)",
        evidence=f"{base.trace.retokenised_outputs:,} recorded answers are text, given ids by rendering the next turn",
        limits="an answer that is tokenized otherwise than it was generated is new from its first other token on",
        advice=False,
    )
    return Found(lever, gain)
