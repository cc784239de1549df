"""What the user asked an analysis to do, apart from the server's own settings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from kvtune.analyzers.decision.objective import NOMINAL_OVERHEAD, Objective
from kvtune.analyzers.hash_cost import KnownCosts
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.report import HardwareInfo, SizeSource, TokenizerInfo, TraceInfo
from kvtune.analyzers.routing import Route
from kvtune.analyzers.shared import Outputs
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.analyzers.step_times import ASSUMED, StepTimes
from kvtune.analyzers.step_times.overhead import step_overhead, token_s

Arrivals = Literal["sequential", "trace"]


@dataclass(frozen=True)
class AnalyzeOptions:
    """How to analyze.

    Attributes:
        units: units to list and replay besides the current and the default one; None is `auto`.
        step_cost_tokens: what one more prefill step costs, in prefilled tokens; None: not given.
        objective: what the choice minimises where step times are known.
        gpu_hour_price: of one GPU for an hour, in any currency; None: not given.
        step_times: what steps take, with `arrivals="trace"`.
        bin_width: of the histogram, tokens; None picks one.
        window_s: length of the slices of time for which the best unit is shown; None shows none.
        capacity_curve: replay a ladder of pool sizes as well.
        levers: also try what beside the unit would recover tokens, by replaying changed traces. culprits: of these
            only what an application does to its prompts that costs much: varying text ahead of common text, tools in
            another order, rewritten history.
        loads: multiples of the trace's own rate under which telling units are replayed as well.
        per_request: list every request.
        assumed_step_budget: nobody said what the server's step budget is.
        upgraded_from: the release that serves, where it has no match unit and a newer one's rules are used.
        replicas, route: how many caches the requests are spread over, and how, where the log names no replicas.
        known_costs: what hashing costs on this machine, as far as it was measured before.
        seed: of the interval's resampling and of random routing. workers: processes that replay, this one included.
        check_integrity: verify the bookkeeping's conservation laws after every request of the sweep; slow.
    """

    units: tuple[int, ...] | None = None
    arrivals: Arrivals = "sequential"
    outputs: Outputs = "none"
    step_cost_tokens: int | None = None
    objective: Literal["gpu-time", "ttft", "tokens"] = "gpu-time"
    gpu_hour_price: float | None = None
    step_times: StepTimes = ASSUMED
    bin_width: int | None = None
    window_s: float | None = None
    capacity_curve: bool = False
    levers: bool = False
    culprits: bool = False
    loads: tuple[float, ...] = ()
    per_request: bool = False
    assumed_step_budget: bool = False
    upgraded_from: str | None = None
    replicas: int = 1
    route: Route = "sticky"
    seed: int = 0
    workers: int = 1
    check_integrity: bool = False
    known_costs: KnownCosts = field(default_factory=KnownCosts, compare=False)

    def decides_by(self) -> Objective:
        """What the choice minimises: a step overhead that was given, else step times, else the worst case."""
        if self.step_cost_tokens is not None:
            return Objective("overhead", self.step_cost_tokens)
        if self.step_times.info.source == "none":
            return Objective("tokens") if self.objective == "tokens" else Objective()
        return Objective(
            self.objective, NOMINAL_OVERHEAD, token_s(self.step_times), self.step_times.info.range
        )

    def decides_in_tokens(self) -> Objective:
        """As `decides_by`, for replays whose steps are not timed: step times count as the step overhead that they give
        a step of 64 tokens."""
        objective = self.decides_by()
        if not objective.in_seconds or not objective.token_s:
            return objective
        return Objective("overhead", round(step_overhead(self.step_times).seconds / objective.token_s))

    @property
    def step_overhead(self) -> int:
        """Tokens a step, in net gains that are stated in tokens."""
        return NOMINAL_OVERHEAD if self.step_cost_tokens is None else self.step_cost_tokens

    def engine(self, config: EngineConfig) -> EngineConfig:
        """The server as it is replayed: by timestamps it schedules asynchronously, as servers do; one request at a
        time, that makes no difference."""
        return replace(config, scheduling="async") if self.arrivals == "trace" else config


@dataclass(frozen=True)
class Provenance:
    """Where everything came from, for the report: filled by the caller, who alone knows files and flags.

    `assumed` are the caveats for defaults that nobody stated and that matter, `flags` those of the server, and
    `unmodelled` the names of those that nothing here reads.
    """

    kvtune_version: str
    command: str
    created: str
    trace: TraceInfo
    tokenizer: TokenizerInfo
    size_source: SizeSource
    assumed: tuple[str, ...] = ()
    hardware: HardwareInfo | None = None
    flags: ServeFlags = field(default_factory=ServeFlags)
    unmodelled: tuple[str, ...] = ()
