"""The value of --step-cost-tokens: a number of tokens, or a report whose validation fitted what steps cost.

Knows the option and reads the file; whether a fit may price this server is for `kvtune.analyzers.fitted_cost`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvtune.analyzers.fitted_cost import FittedStepCost, check_same_model, check_usable
from kvtune.analyzers.layout import KVCacheGroup
from kvtune.analyzers.step_times import ASSUMED, StepTimes
from kvtune.cli.report import read_report
from kvtune.tokenization.errors import UnusableInputError

OPTION = "--step-cost-tokens"


@dataclass(frozen=True)
class StepPrice:
    """What a step costs.

    Attributes:
        tokens: in prefilled tokens. model: in seconds, for replays by timestamps; the assumed one where only a number
            was stated.
        fitted: the fit that both are of, made with groups of these kinds and counts, and `source`, its report.
    """

    tokens: int
    model: StepTimes = ASSUMED
    fitted: FittedStepCost | None = None
    groups: tuple[tuple[str, int], ...] = ()
    source: str | None = None

    def check(self, groups: Sequence[KVCacheGroup]) -> None:
        """Whether the price is that of a model with these groups.

        Raises:
            UnusableInputError: it was fitted on another model.
        """
        if self.source is not None:
            check_same_model(self.groups, groups, self.source)

    def caveats(self, longest_tokens: int) -> tuple[str, ...]:
        """Where the price came from, for a report on requests of up to so many tokens."""
        if self.fitted is None or self.source is None:
            return ()
        return (self.fitted.caveat(self.source, longest_tokens),)


def step_price(text: str) -> StepPrice:
    """The value of --step-cost-tokens.

    Raises:
        UnusableInputError: neither a number nor a readable report, or a report whose fit may not be used.
    """
    if text.isascii() and text.isdigit() and len(text) < 16:
        return StepPrice(int(text))
    if not Path(text).is_file():
        raise UnusableInputError(
            "is unusable",
            field=OPTION,
            found=repr(text[:80]),
            wanted="a number of tokens from 0 on, or a report of `kvtune validate --clock virtual --json FILE`",
        )
    report = read_report(text)
    found = check_usable(report.validation.step_cost if report.validation else None, text)
    return StepPrice(
        round(found.step_cost_tokens or 0),
        found.step_times(),
        found,
        tuple((group.kind, group.count) for group in report.engine.groups),
        text,
    )
