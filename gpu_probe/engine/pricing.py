"""What steps cost here, for the report: the run model's cost, and the whole model's where it can be had.

Knows models, runs and fits; whether a fit may price another server is for `analyzers.fitted_cost`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kvtune.analyzers.fitted_cost import Covers, FittedStepCost
from kvtune.analyzers.step_times import LinearStepTimes
from kvtune.analyzers.step_times.linear import held_out_error
from kvtune.gpu_probe.engine.calibrate import Design, calibrate, grid_context
from kvtune.gpu_probe.engine.candidates import Candidate
from kvtune.gpu_probe.engine.depth import cost_of_whole
from kvtune.gpu_probe.engine.devices import device_label
from kvtune.gpu_probe.engine.probe import Probe
from kvtune.gpu_probe.engine.spec import ModelSpec
from kvtune.gpu_probe.engine.stand_in import Chosen
from kvtune.gpu_probe.validate import Progress
from kvtune.tokenization.errors import UnusableInputError


class Pricing:
    """The step costs of one session. `cost`: of the model that is run, None before it was fitted."""

    def __init__(
        self, probe: Probe, chosen: Chosen, candidates: Sequence[Candidate], longest_request: int
    ) -> None:
        """`longest_request`: of the trace, in tokens; the timed contexts reach as far."""
        self.cost: LinearStepTimes | None = None
        self._composed: tuple[LinearStepTimes, int] | None = None
        self._probe = probe
        self._chosen = chosen
        self._candidates = candidates
        self._longest = grid_context(longest_request)

    def fit(
        self, make_probes: Callable[[Sequence[ModelSpec]], Sequence[Probe]], progress: Progress
    ) -> list[str]:
        """Times steps, and says what came of it. `make_probes` makes models of some layers."""
        design = Design.reaching(self._longest)
        try:
            found = calibrate(self._probe, design, progress=partial(progress, "step costs"))
        except ValueError as error:
            return [f"no step-cost model was fitted: {error}"]
        self.cost = found.cost
        said = [_sentence("a step of what was run", self.cost, self.own_steps_error())]
        whole = self._chosen.whole
        if whole is not None and self._chosen.covers == "layers":
            try:
                self._composed = cost_of_whole(
                    whole, make_probes, design=design, progress=partial(progress, "costs by layer")
                )
            except (ValueError, UnusableInputError) as error:
                return [*said, f"the whole model's step cost was not composed: {error}"]
            said.append(_sentence(f"a step of all {whole.num_layers} layers", self._composed[0], None))
        return said

    def own_steps_error(self) -> float | None:
        """Predicted over measured time of all steps of the candidates' runs, less 1."""
        records = [record for candidate in self._candidates for record in candidate.records]
        measured = sum(sum(record.step_s) for record in records)
        if self.cost is None or measured <= 0:
            return None
        predicted = sum(self.cost.step_s(shape) for record in records for shape in record.steps)
        return predicted / measured - 1

    def reported(self) -> FittedStepCost | None:
        """For the report: of the whole model where that was timed or could be composed; None without a fit."""
        if self.cost is None:
            return None
        chosen, cost, layers = self._chosen, self.cost, self._chosen.spec.num_layers
        covers: Covers = chosen.covers
        reason = cost.reason
        if covers == "stand_in":
            reason = reason or "a small model in place of the server's was timed"
        elif covers == "layers" and self._composed is not None and self._composed[0].extrapolates:
            covers, (cost, layers) = "composed", self._composed
            reason = None
        elif covers == "layers":
            composed = self._composed[0].reason if self._composed is not None else "not composed"
            reason = f"only some of the model's layers were timed; all of them: {composed}"
        error = cost.info.error
        assert error is not None
        step, token, pair, decode, context, sequence = cost.coefficients
        return FittedStepCost(
            step_s=step,
            prefill_token_s=token,
            attended_pair_s=pair,
            decode_sequence_s=decode,
            context_token_s=context,
            prefill_sequence_s=sequence,
            step_cost_tokens=cost.step_overhead_tokens,
            mean_error=error.mean,
            p90_error=error.p90,
            held_out=cost.held_out,
            own_steps_error=self.own_steps_error(),
            longest_context_tokens=self._longest,
            device=device_label(self._probe.device),
            rung=chosen.rung,
            covers=covers,
            layers=layers,
            model_layers=None if chosen.whole is None else chosen.whole.num_layers,
            extrapolates=reason is None,
            reason=reason,
        )


def _sentence(what: str, cost: LinearStepTimes, own_steps_error: float | None) -> str:
    assert cost.info.error is not None
    errors = held_out_error(cost.info.error.mean, cost.info.error.p90)
    if own_steps_error is not None:
        errors += f"; all steps of the runs together {own_steps_error:+.1%}"
    used = "" if cost.extrapolates else ": too far off, it prices nothing"
    return f"{what} costs like {cost.step_overhead_tokens or 0:.0f} prefilled tokens on this device ({errors}){used}"
