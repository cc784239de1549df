"""The recommendation as the report states it: flags, gain, interval, doubts and what it rests on."""

from __future__ import annotations

from kvtune.analyzers.recommend import Choice
from kvtune.analyzers.report import Recommendation
from kvtune.analyzers.why import Setting


def recommendation(choice: Choice, *, why: str, setting: Setting, caveats: tuple[str, ...]) -> Recommendation:
    """Put a choice into the report's words. `caveats` are those of the inputs; doubts about the choice go first."""
    return Recommendation(
        action=choice.action,
        unit=choice.unit,
        current_unit=setting.current_unit,
        flags=(f"--prefix-match-unit {choice.unit}",) if choice.action == "set" else (),
        gain_tokens=choice.gain_tokens,
        gain_fraction=choice.gain_tokens / int(setting.prompt_tokens.sum()),
        gain_ci95=choice.interval,
        net_gain_tokens=choice.net_gain_tokens,
        confidence=choice.confidence,
        why=why,
        caveats=(*choice.doubts, *caveats),
    )
