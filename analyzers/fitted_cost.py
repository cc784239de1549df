"""`FittedStepCost`: what a step cost on a device, as `kvtune validate` measured it, and whether it may price a server.

A fit is refused where its error is large, where what was timed is not the server's model, and where the model is
another one than is analyzed; a number of tokens can always be stated instead. Knows figures and rules; neither how
steps are timed nor where reports are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from kvtune.analyzers.layout import KVCacheGroup
from kvtune.analyzers.step_times import LinearStepTimes, StepTimesError, StepTimesInfo
from kvtune.analyzers.step_times.linear import (
    LARGEST_MEAN_ERROR,
    LARGEST_P90_ERROR,
    beyond_limits,
    held_out_error,
)
from kvtune.tokenization.errors import UnusableInputError

_LARGEST_COST = 1_000_000_000
"""Of a step, in tokens."""

Covers = Literal["model", "composed", "layers", "stand_in"]
"""What the seconds are of: the server's whole model, timed or composed of timed layers; some of its layers; a small
model in its place."""

NonNegative = Annotated[float, msgspec.Meta(ge=0)]

SERVER_SLACK = 2
"""A time to first token holds more than its steps, so a server's fit may be so many times as far off as a step's."""

_STATE_A_NUMBER = "or state a number of tokens"


class FittedStepCost(msgspec.Struct, frozen=True, kw_only=True):
    """A step's cost on a device; the report's `validation.step_cost`.

    Attributes:
        step_s to prefill_sequence_s: seconds, as in `LinearStepTimes.coefficients`.
        request_s: of a request outside its steps, to its first token; 0 where steps alone were timed.
        token_bends: as `LinearStepTimes.bends`.
        step_cost_tokens: what one more prefill step costs, in prefilled tokens; None where tokens cost nothing.
        mean_error, p90_error: relative, on `held_out` batches that took no part in the fit; with `composed`, batches
            of a model twice as deep as those that were fitted.
        own_steps_error: predicted over measured time of all steps of the validation's own runs, less 1.
        longest_context_tokens: up to which batches were timed.
        device, rung: where, and on which rung of the ladder. covers: what. layers, model_layers: of the deepest model
            that was timed and of the server's (None: a model in its place was timed).
        extrapolates: whether the errors allow use beyond the timed batches. reason: why not.
    """

    step_s: NonNegative
    prefill_token_s: NonNegative
    attended_pair_s: NonNegative
    decode_sequence_s: NonNegative
    context_token_s: NonNegative
    prefill_sequence_s: NonNegative
    request_s: NonNegative = 0.0
    token_bends: tuple[tuple[int, float], ...] = ()
    step_cost_tokens: NonNegative | None
    mean_error: NonNegative
    p90_error: NonNegative
    median_error: NonNegative | None = None
    held_out: int
    own_steps_error: float | None = None
    longest_context_tokens: int
    device: str
    rung: str
    covers: Covers
    layers: int
    model_layers: int | None = None
    extrapolates: bool
    reason: str | None = None

    @property
    def is_of_server(self) -> bool:
        """Whether a server's times to first token were fitted; else steps of the bundled engine."""
        return self.rung.startswith("L3")

    def step_times(self) -> LinearStepTimes:
        """The same as a model of step times."""
        error = StepTimesError(mean=self.mean_error, p90=self.p90_error)
        return LinearStepTimes(
            (
                self.step_s,
                self.prefill_token_s,
                self.attended_pair_s,
                self.decode_sequence_s,
                self.context_token_s,
                self.prefill_sequence_s,
            ),
            StepTimesInfo(
                source="server" if self.is_of_server else "engine",
                hardware=self.device,
                provenance=f"measured on {self.device}"
                if self.is_of_server
                else f"measured by the bundled engine: {self.device}, {self.rung}",
                error=error,
                range=(1 / (1 + error.p90), 1 + error.p90),
            ),
            self.held_out,
            self.token_bends,
        )

    def sentence(self) -> str:
        """What was measured, for the person at the terminal."""
        overhead = (
            f"{self.step_cost_tokens:,.0f} tokens" if self.step_cost_tokens is not None else "no whole token"
        )
        token = self.prefill_token_s + sum(more for _, more in self.token_bends)
        text = (
            f"step overhead {1000 * self.step_s:.3g} ms, the time of {overhead}; a token of a long prefill "
            f"{1e6 * token:.3g} us; request overhead {1000 * self.request_s:.3g} ms; {self.errors()}"
        )
        return text if self.reason is None else f"{text}: too far off, it prices nothing"

    def errors(self) -> str:
        """The held-out error in words."""
        return held_out_error(self.mean_error, self.p90_error)

    def caveat(self, source: str, longest_tokens: int) -> str:
        """Where the price of a step came from, for a report on requests of up to `longest_tokens`."""
        text = (
            f"steps cost what {source} measured: {self.device}, {self.rung}, one step like "
            f"{self.step_cost_tokens or 0:.0f} prefilled tokens ({self.errors()}); a server on another device has "
            "costs of its own"
        )
        if self.covers == "composed" and self.layers != self.model_layers:
            text += f"; {self.model_layers} layers were composed of the times of {self.layers}"
        if longest_tokens > self.longest_context_tokens:
            text += f"; contexts beyond {self.longest_context_tokens:,} tokens were not timed"
        return text


def check_usable(fitted: FittedStepCost | None, source: str) -> FittedStepCost:
    """The fit of a report's validation, if it may price the model that it was made for; `source` names the report.

    Raises:
        UnusableInputError: there is none, its error is too large, or it is not of the server's whole model.
    """
    field = "validation.step_cost"
    if fitted is None:
        raise UnusableInputError(
            "the report holds no fitted step cost",
            where=source,
            field=field,
            way_out=f"make one with `kvtune validate --clock virtual --json FILE` (--gpu on a GPU), {_STATE_A_NUMBER}",
        )
    if not fitted.step_cost_tokens or round(fitted.step_cost_tokens) > _LARGEST_COST:
        raise UnusableInputError(
            "the fitted step cost is no price in tokens",
            where=source,
            field=f"{field}.step_cost_tokens",
            found="null" if fitted.step_cost_tokens is None else f"{fitted.step_cost_tokens:g}",
            wanted=f"above 0, at most {_LARGEST_COST:,}",
            way_out=f"validate again on a quiet machine, {_STATE_A_NUMBER}",
        )
    slack = SERVER_SLACK if fitted.is_of_server else 1
    reason = beyond_limits(fitted.mean_error, fitted.p90_error, fitted.held_out, slack)
    if reason is not None:
        raise UnusableInputError(
            "the fitted step cost is too far off to price anything",
            where=source,
            field=field,
            found=fitted.errors(),
            wanted=f"at most {slack * LARGEST_MEAN_ERROR:.0%} and {slack * LARGEST_P90_ERROR:.0%}",
            way_out=f"validate again on a quiet machine, {_STATE_A_NUMBER}",
        )
    if fitted.covers in ("layers", "stand_in"):
        raise UnusableInputError(
            "the fitted step cost is not that of the server's model",
            where=source,
            field=field,
            found=repr(fitted.rung[:80]),
            wanted="the whole model, or layers of it that composed within the limits",
            way_out=f"validate with --gpu, or with more --layers, {_STATE_A_NUMBER}",
        )
    return fitted


def check_same_model(fitted: Sequence[tuple[str, int]], groups: Sequence[KVCacheGroup], source: str) -> None:
    """Refuse a fit of another model: `fitted` are the kinds and counts of the groups that it was made with.

    Raises:
        UnusableInputError: the analyzed server has other groups.
    """
    found = [(group.kind, group.count) for group in groups]
    if list(fitted) != found:
        raise UnusableInputError(
            "the fitted step cost is another model's",
            where=source,
            field="engine.groups",
            found=_words(fitted),
            wanted=_words(found),
            way_out=f"validate this model, {_STATE_A_NUMBER}",
        )


def _words(groups: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{kind}*{count}" for kind, count in groups)
