"""The values of --step-cost-tokens and --step-times: a number of tokens, or a report in which steps were measured.

Knows the options and reads the file; whether a fit may price this server is for `kvtune.analyzers.fitted_cost`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvtune.analyzers.fitted_cost import FittedStepCost, check_same_model, check_usable
from kvtune.analyzers.layout import KVCacheGroup
from kvtune.analyzers.step_times import ASSUMED, LinearStepTimes
from kvtune.cli.report import read_report
from kvtune.tokenization.errors import UnusableInputError

TOKENS_OPTION = "--step-cost-tokens"
TIMES_OPTION = "--step-times"


@dataclass(frozen=True)
class StepPrice:
    """What the options say of steps.

    Attributes:
        tokens: step overhead, that of the report with --step-cost-tokens REPORT.json; None where neither was given.
        times: step times; the assumed ones where none were given.
        fitted: the fit that `times` are, made with groups of these kinds and counts, and `source`, its report.
    """

    tokens: int | None = None
    times: LinearStepTimes = ASSUMED
    fitted: FittedStepCost | None = None
    groups: tuple[tuple[str, int], ...] = ()
    source: str | None = None

    def check(self, groups: Sequence[KVCacheGroup]) -> None:
        """Whether the times are those of a model with these groups.

        Raises:
            UnusableInputError: they were fitted on another model.
        """
        if self.source is not None:
            check_same_model(self.groups, groups, self.source)

    def caveats(self, longest_tokens: int) -> tuple[str, ...]:
        """Where the times came from, for a report on requests of up to so many tokens."""
        if self.fitted is None or self.source is None:
            return ()
        return (self.fitted.caveat(self.source, longest_tokens),)


def step_price(step_cost_tokens: str | None, step_times: str | None = None) -> StepPrice:
    """The values of the two options.

    Raises:
        UnusableInputError: neither a number nor a readable report, a report whose fit may not be used, or two reports.
    """
    number, report = None, step_times
    if step_cost_tokens is not None:
        if step_cost_tokens.isascii() and step_cost_tokens.isdigit() and len(step_cost_tokens) < 16:
            number = int(step_cost_tokens)
        elif step_times is not None:
            raise UnusableInputError(
                "two reports with step times", field=TOKENS_OPTION, wanted=f"one of it and {TIMES_OPTION}"
            )
        else:
            report = step_cost_tokens
    if report is None:
        return StepPrice(number)
    if not Path(report).is_file():
        raise UnusableInputError(
            "is unusable",
            field=TOKENS_OPTION if step_times is None else TIMES_OPTION,
            found=repr(report[:80]),
            wanted="a number of tokens from 0 on, or a report of `kvtune validate --measure-steps --json FILE`"
            if step_times is None
            else "a report of `kvtune validate --measure-steps --json FILE`",
        )
    stored = read_report(report)
    found = check_usable(stored.validation.step_cost if stored.validation else None, report)
    groups = tuple((group.kind, group.count) for group in stored.engine.groups)
    if step_times is None:
        number = round(found.step_cost_tokens or 0)
    return StepPrice(number, found.step_times(), found, groups, report)
