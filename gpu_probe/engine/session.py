r"""`Session`: candidates of one server on one device, from the trace's ids to the report's `Validation`.

    trace + settings --> workload (the first N requests) --> predictions, by replay
                    \-> model on the device           --> runs, there and back again (ABBA) --> rows, differences

Knows the order of things and where each is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.replay import replay
from kvtune.analyzers.shared import Outputs
from kvtune.analyzers.step_times.overhead import step_overhead
from kvtune.analyzers.validation import Validation
from kvtune.gpu_probe.engine.agreement import Predicted, departures, other_tokens
from kvtune.gpu_probe.engine.candidates import Candidate, rows
from kvtune.gpu_probe.engine.clocks import Clock, ModelClock, VirtualClock, WallClock
from kvtune.gpu_probe.engine.devices import device_label
from kvtune.gpu_probe.engine.extras import Extras
from kvtune.gpu_probe.engine.loading import build, build_parts, choose
from kvtune.gpu_probe.engine.pricing import Pricing
from kvtune.gpu_probe.engine.probe import OutOfMemoryError, Probe, with_unit
from kvtune.gpu_probe.engine.rates import RateFinder, Rates
from kvtune.gpu_probe.engine.spec import Moe
from kvtune.gpu_probe.engine.workload import Workload, make_workload
from kvtune.gpu_probe.live.verdict import palindromic
from kvtune.gpu_probe.validate import ProbeOptions, ProbeResult, Progress
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.trace import TokenTrace

BUDGET_FLOP = {"cpu": 3e12, "cuda": 2e17}
"""What all runs together may take where the user states no number of requests."""

LARGEST_BUDGET_TOKENS = {"cpu": 300_000, "cuda": 40_000_000}

FEW = 6
ANSWER_TOKENS = 24
"""Requests that a self-check decodes side by side, and the length of their answers."""

STEP_TOKENS = {"cpu": 100, "cuda": 2_000}
"""What a step costs beside its tokens, in tokens, where small operations are what takes time."""


@dataclass(frozen=True)
class _Stage:
    """One run's progress as part of all runs'."""

    progress: Progress
    before: int
    total: int

    def __call__(self, done: int, in_run: int) -> None:  # noqa: ARG002
        self.progress("execute", self.before + done, self.total)


class Session:
    """One validation. `run` once."""

    def __init__(
        self,
        trace: TokenTrace,
        config: EngineConfig,
        units: Sequence[int | None],
        options: ProbeOptions,
        device: torch.device,
    ) -> None:
        self.options = options
        self.num_in_trace = len(trace)
        self.longest_request = int(trace.prompt_tokens.max(initial=1))
        self.chosen = choose(options)
        self.probe = build(self.chosen, config, options, device)
        self.workload = self._workload(trace, options.outputs, options.requests)
        self._few = self.workload
        if options.self_check:
            answers = np.full(len(trace), ANSWER_TOKENS, dtype=np.int64)
            self._few = self._workload(replace(trace, output_tokens=answers), "length", FEW)
        if options.arrivals == "trace" and self.workload.inputs.arrival is None:
            raise UnusableInputError(
                "the trace has requests without a time", field="--arrivals", found="trace"
            )
        if options.arrivals == "trace":
            config = replace(config, scheduling="async")  # as servers run, and as the analysis replays
        configs = [with_unit(config, unit) for unit in units]
        if options.requests is None:
            self.workload = self.workload.first(_affordable(self.probe, self.workload, configs, options))
        self.candidates = [self._predict(each) for each in configs]
        self.nominal = options.step_times
        self.pricing: Pricing | None = None
        self.rates = Rates([])

    def run(self, progress: Progress) -> ProbeResult:
        """Runs everything; an interruption keeps what is finished.

        Raises:
            KeyboardInterrupt: before anything was finished.
        """
        interrupted = self._run_all(progress)
        finished = [candidate for candidate in self.candidates if candidate.records]
        if not finished:
            raise KeyboardInterrupt
        differences, notes = list(self._differences(finished)), list(self._notes())
        if not interrupted:
            try:
                self._run_beside(finished, differences, notes, progress)
            except KeyboardInterrupt:
                interrupted = True
        if interrupted:
            notes.append("stopped before all runs were done: the figures are of those that were")
        return ProbeResult(self._validation(finished, differences, notes), interrupted)

    def _run_beside(
        self, finished: list[Candidate], differences: list[str], notes: list[str], progress: Progress
    ) -> None:
        """Step costs, extra runs and the largest rates; what they find is added as they go."""
        options, chosen = self.options, self.chosen
        if options.clock != "model":
            self.pricing = Pricing(self.probe, chosen, finished, self.longest_request)
            notes += self.pricing.fit(
                lambda specs: build_parts(specs, self.probe.config, options, self.probe.device),
                progress,
            )
        extras = Extras(self.probe, self.workload, self._few, finished, self.options, self._clock)
        for name, extra in extras.runs():
            progress(name, 0, 1)
            found, said = extra()
            differences += found
            notes += said
        cost = self.nominal if options.clock == "model" else self.pricing.cost if self.pricing else None
        finder = RateFinder(self.probe, finished, self.workload, options, cost)
        self.rates = finder.rates
        finder.find(progress)
        notes += self.rates.said

    def _validation(self, finished: list[Candidate], differences: list[str], notes: list[str]) -> Validation:
        options = self.options
        return Validation(
            rung=self.chosen.rung,
            device=device_label(self.probe.device),
            clock=options.clock,
            order=" ".join(str(candidate.unit) for candidate in self._order()),
            runs=options.runs_each,
            slo=dict(options.slo) or None,
            candidates=tuple(
                rows(
                    finished,
                    options.slo,
                    deterministic=options.clock == "model",
                    searches=self.rates.searches,
                )
            ),
            agrees=not differences,
            differences=tuple(dict.fromkeys(differences)),
            requests=len(self.workload),
            trace_requests=self.num_in_trace,
            notes=tuple(notes),
            step_cost=self.pricing.reported() if self.pricing else None,
            rate_search=self.rates.how,
        )

    def _workload(self, trace: TokenTrace, outputs: Outputs, limit: int | None) -> Workload:
        return make_workload(
            trace,
            outputs,
            vocab_size=self.chosen.spec.vocab_size,
            seed=self.options.seed,
            fold_ids=self.chosen.folds_ids,
            limit=limit,
        )

    def _predict(self, config: EngineConfig) -> Candidate:
        """What the bookkeeping says of the same requests; nothing where hits depend on measured time."""
        timed = self.options.arrivals == "trace" and self.options.clock != "model"
        result = replay(
            config,
            self.workload.inputs,
            arrivals="sequential" if timed else self.options.arrivals,
            step_times=self.options.step_times,
        )
        predicted: Predicted | None = None if timed else result
        return Candidate(config, result.sizes.cache_hit_alignment, predicted)

    def _order(self) -> list[Candidate]:
        """There and back again, so that a drift of the machine favours nobody."""
        places = palindromic(list(range(len(self.candidates))), self.options.runs_each)
        return [self.candidates[place] for place in places if place is not None]

    def _clock(self) -> Clock:
        if self.options.clock == "model":
            return ModelClock(self.nominal.step_s)
        if self.options.clock == "virtual":
            return VirtualClock()
        arrival = self.workload.inputs.arrival
        if self.options.arrivals == "trace" and arrival is not None:
            return WallClock(float(arrival[0]))
        return WallClock()

    def _run_all(self, progress: Progress) -> bool:
        """All runs in order, each from an empty cache; True if they stopped early with something finished."""
        order, count = self._order(), len(self.workload)
        try:
            if self.options.clock != "model":
                # The same warm-up for all: the first requests, under the settings in force.
                self.probe.run(self.candidates[0].config, self.workload.first(8), VirtualClock())
            for number, candidate in enumerate(order):
                stage = _Stage(progress, number * count, len(order) * count)
                record = self.probe.run(
                    candidate.config,
                    self.workload,
                    self._clock(),
                    arrivals=self.options.arrivals,
                    check=self.options.check,
                    progress=stage,
                )
                candidate.records.append(record)
        except KeyboardInterrupt:
            return True
        except OutOfMemoryError:
            if not any(candidate.records for candidate in self.candidates):
                raise
            return True
        return False

    def _differences(self, finished: Sequence[Candidate]) -> Iterator[str]:
        """Where an execution did something else than was predicted, each a sentence."""
        ids = self.workload.inputs.ids
        for candidate in finished:
            if candidate.predicted is not None:
                for record in candidate.records:
                    yield from departures(candidate.name, candidate.predicted, record, ids)
        if self.probe.precision.dtype != torch.float32:
            return  # half types part at near ties whatever the cache does
        base = finished[0]
        for candidate in finished[1:]:
            yield from other_tokens((base.name, base.records[0]), (candidate.name, candidate.records[0]), ids)

    def _notes(self) -> Iterator[str]:
        """What the figures rest on, for a reader who was not there."""
        options, chosen = self.options, self.chosen
        if len(self.workload) < self.num_in_trace:
            yield f"the first {len(self.workload):,} of {self.num_in_trace:,} requests: --requests runs more"
        if options.clock == "model":
            overhead = step_overhead(self.nominal)
            tokens, seconds = overhead.high, overhead.seconds
            machine = f"the machine of {options.priced_by}" if options.priced_by else "a nominal machine"
            yield (
                f"times are those of {machine} whose step overhead is {1000 * seconds:.3g} ms, the time of "
                f"{tokens:.0f} prefilled tokens, not this machine's"
            )
        if chosen.folds_ids:
            yield "ids were taken modulo the small model's vocabulary; hits are those of the ids themselves"
        if options.arrivals == "trace" and options.clock != "model":
            yield "requests arrived by the clock: hits depend on this machine's speed and were not predicted"
        if chosen.rung.startswith("L0"):
            yield "a tiny model proves hits, copies and equal results, not times of yours"
        if (
            any(isinstance(block.operator, Moe) for block in chosen.spec.blocks)
            and "synthetic" in chosen.rung
        ):
            yield "routing of experts is synthetic: nearly uniform"


def _affordable(
    probe: Probe, workload: Workload, configs: Sequence[EngineConfig], options: ProbeOptions
) -> int:
    """The number of requests, from the first on, that the budget allows. The same on every machine."""
    per_token = 2.0 * probe.spec.active_parameters()
    budget = min(BUDGET_FLOP[options.device] / per_token, LARGEST_BUDGET_TOKENS[options.device])
    inputs = workload.inputs
    computed = np.zeros(len(workload))
    for config in configs:
        result = replay(config, inputs)
        tokens = inputs.prompt_tokens - result.hit_tokens + inputs.output_tokens
        steps = result.prefill_steps + inputs.output_tokens - 1
        computed += options.runs_each * (tokens + STEP_TOKENS[options.device] * steps)
    return max(1, int(np.searchsorted(np.cumsum(computed), budget, side="right")))
