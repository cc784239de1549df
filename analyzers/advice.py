"""The recommendation as the report gives it: flags, gain, interval, what it is worth, doubts and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass

from kvtune.analyzers.decision import Choice
from kvtune.analyzers.plan import follow_lever
from kvtune.analyzers.report import Confidence, Lever, PlanStep, Recommendation, RegretInfo
from kvtune.analyzers.why import Setting


@dataclass(frozen=True)
class Worth:
    """What saved prefill time comes to on this traffic.

    Attributes:
        gpus: that a step occupies. duration_s: of the trace, first to last arrival; None where it is not known.
        gpu_hour_price: of one GPU; None where nobody gave it.
    """

    gpus: int
    duration_s: float | None
    gpu_hour_price: float | None

    def words(self, choice: Choice) -> str:
        """`GPU time of prefill −16%, 4.1 GPU-minutes an hour of this traffic (…)`."""
        if not choice.objective.in_seconds or choice.action not in ("set", "unset"):
            return ""
        what = "GPU time of prefill" if choice.objective.kind == "gpu-time" else "Time to first token"
        text = f"{what} {-choice.gain_fraction:+.0%}".replace("-", "−")
        if choice.objective.kind == "gpu-time" and self.duration_s:
            saved = choice.gain * self.gpus * 3600 / self.duration_s
            unit, scale = ("GPU-minutes", 60) if saved >= 60 else ("GPU-seconds", 1)
            text += f", {saved / scale:,.1f} {unit} an hour of this traffic"
            if self.gpu_hour_price is not None:
                text += f" ({saved / 3600 * self.gpu_hour_price:,.2f} an hour at {self.gpu_hour_price:,g} a GPU-hour)"
        return text + "."


def recommendation(
    choice: Choice,
    *,
    why: str,
    setting: Setting,
    worth: Worth,
    caveats: tuple[str, ...],
    lever: Lever | None = None,
    plan: tuple[PlanStep, ...] = (),
    pool_allows: Confidence = "high",
) -> Recommendation:
    """Put a choice into the report's words.

    Args:
        caveats: those of the inputs; doubts about the choice go first.
        lever: the optimization that leads the plan, if one does. plan: all steps.
        pool_allows: the highest confidence that what is known of the pool allows.
    """
    changes = choice.action in ("set", "unset")
    worst = choice.regret.worst if choice.regret is not None else None
    advice = Recommendation(
        action=choice.action,
        unit=choice.unit,
        current_unit=setting.current_unit,
        flags=(f"--prefix-match-unit {choice.unit}",) if choice.action == "set" else (),
        gain_tokens=choice.gain_tokens,
        gain_fraction=choice.gain_tokens / int(setting.prompt_tokens.sum()),
        gain_ci95=choice.interval,
        net_gain_tokens=choice.net_gain_tokens,
        confidence=pool_allows if choice.confidence == "high" else choice.confidence,
        why=why,
        caveats=(*choice.doubts, *caveats),
        objective=choice.objective.kind,
        prefill_change=-choice.gain_fraction if choice.objective.in_seconds and changes else None,
        saved_s=choice.gain if choice.objective.in_seconds and changes else None,
        worth=worth.words(choice),
        regret=RegretInfo(tokens_fraction=worst[0], over=worst[1]) if worst is not None else None,
        gain_by_half=choice.gain_by_half if changes else None,
        margin_tokens=choice.regret.margin if choice.regret is not None else None,
        plan=tuple(range(len(plan))),
    )
    return advice if lever is None else follow_lever(advice, lever, setting)
