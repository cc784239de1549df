"""`Analysis`: shared prefixes, candidates, replays and the choice, as found and not yet put into rows.

    shared prefixes -> candidates -> replay per unit -> choice

Each step stands in its own file; here they are only put in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from kvtune.analyzers.decision import Cap, Choice, Evidence, Outcome, choose
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.log_check.check import LogChecked, check_log
from kvtune.analyzers.log_check.info import LogCheck
from kvtune.analyzers.log_check.trials import MOST_REQUESTS, Trials, beginning
from kvtune.analyzers.options import AnalyzeOptions
from kvtune.analyzers.pool.units import ReplayedUnits
from kvtune.analyzers.profiles import profile_for
from kvtune.analyzers.profiles.server_defaults import SMALLEST_STEP_BUDGET
from kvtune.analyzers.replay import ReplayResult
from kvtune.analyzers.replays import ReplayTask
from kvtune.analyzers.resolver import ResolvedSizes, resolve_sizes
from kvtune.analyzers.routing import caches_of, logged_replicas
from kvtune.analyzers.sessions import find_sessions
from kvtune.analyzers.shared import SharedPrefixes, find_shared_prefixes
from kvtune.analyzers.sizing.deployment_findings import finer_unit_beside_connector
from kvtune.analyzers.span import check_span, restrict_to_span
from kvtune.analyzers.sweep import Progress, Sweep, replay_input, sweep_units
from kvtune.analyzers.units import UnitCandidate, default_match_unit, grids_of, unit_candidates
from kvtune.analyzers.why import Setting
from kvtune.tokenization.errors import NoUsableRequestError, UnusableInputError
from kvtune.tokenization.trace import Float64, Int32, TokenTrace


@dataclass(frozen=True)
class Analysis:
    """Everything found, before it is put into rows. `trace` has a namespace per replica, `undivided` has not.

    `setting` speaks of grids: its units are the effective ones of the current unit and of the default. `task` is what
    was replayed for every unit.
    """

    undivided: TokenTrace
    trace: TokenTrace
    config: EngineConfig
    options: AnalyzeOptions
    sizes: ResolvedSizes
    caveats: tuple[str, ...]
    task: ReplayTask
    shared: SharedPrefixes
    sessions: Int32
    candidates: tuple[UnitCandidate, ...]
    sweep: Sweep
    outcomes: list[Outcome]
    prefill_s: dict[int, Float64] | None
    setting: Setting
    choice: Choice
    log_check: LogCheck | None

    def result_on(self, grid: int) -> ReplayResult:
        """The replay whose hits land on `grid`."""
        result = self.sweep.of(self._row_on(grid))
        assert result is not None
        return result

    def unit_on(self, grid: int) -> int | None:
        """The unit of that replay; None where it is the default, which needs no flag."""
        unit = self._row_on(grid).unit
        return None if unit == self.sweep.default_unit else unit

    def config_on(self, grid: int) -> EngineConfig:
        """The server with that unit."""
        return replace(self.config, match_unit=self.unit_on(grid))

    def units(self) -> ReplayedUnits:
        """What there was to choose from, to be replayed in other pools."""
        grids = [outcome.unit for outcome in self.outcomes]
        return ReplayedUnits(
            self.config,
            replace(self.task, check=False),
            match_units={grid: self.unit_on(grid) for grid in grids},
            results={grid: self.result_on(grid) for grid in grids},
            current_unit=self.setting.current_unit,
            recommended_unit=self.choice.unit,
            objective=self.options.decides_in_tokens(),
            workers=self.options.workers,
        )

    def _row_on(self, grid: int) -> UnitCandidate:
        return next(
            row for row in self.candidates if row.effective_unit == grid and self.sweep.of(row) is not None
        )


def find(
    trace: TokenTrace,
    config: EngineConfig,
    options: AnalyzeOptions,
    progress: Progress,
    meanwhile: Callable[[TokenTrace, Sequence[int]], None] = lambda _trace, _units: None,
) -> Analysis:
    """Shared prefixes, candidates, replays and the choice.

    Args:
        meanwhile: called with the trace and the units that are replayed, while workers begin to replay.

    Raises:
        EngineRefusal: the server would not start with the settings in force (`config.match_unit` included).
        NoUsableRequestError: the trace is empty.
        UnusableInputError: a trace of block hashes does not fit the groups' sizes.
    """
    if not len(trace):
        raise NoUsableRequestError("the trace holds no usable request")
    config = options.engine(config)
    selected = profile_for(config.version)
    sizes = resolve_sizes(config, selected.profile)
    check_span(config, trace.span)
    _check_lengths(config, trace)
    candidates = restrict_to_span(unit_candidates(config, selected.profile, options.units), trace.span)
    progress("shared prefixes", 0, 1)
    shared = find_shared_prefixes(trace, options.outputs)
    sessions = find_sessions(trace, shared)
    undivided = trace
    trace, replica = caches_of(trace, options)
    if replica is not None:
        shared = find_shared_prefixes(trace, options.outputs)
    progress("shared prefixes", 1, 1)
    task = ReplayTask(
        replay_input(trace, shared), replica, options.arrivals, options.step_times, options.check_integrity
    )
    sweep = sweep_units(
        config,
        task,
        candidates,
        default_unit=default_match_unit(config, selected.profile),
        workers=options.workers,
        progress=progress,
        meanwhile=partial(meanwhile, trace),
    )
    prefill_s = sweep.prefill_s(options.step_times)
    outcomes = sweep.outcomes(candidates, prefill_s, task.inputs.arrival)
    objective = options.decides_by()
    grid = {row.unit: row.effective_unit for row in candidates}
    setting = Setting(
        prompt_tokens=trace.prompt_tokens,
        repeated=shared.repeated,
        current_unit=grid[sweep.current_unit],
        default_unit=grid[sweep.default_unit],
        scheduler_block_size=sizes.scheduler_block_size,
        objective=objective,
        has_recurrent_state=any(group.kind == "mamba" for group in config.groups),
        caches=config.enable_prefix_caching,
        refused=len(sweep.results[sweep.current_unit].refused),
    )
    checked = _check_log(trace, config, task, shared, sessions, sweep, outcomes, setting)
    choice = choose(
        outcomes,
        current_unit=setting.current_unit,
        default_unit=setting.default_unit,
        objective=objective,
        evidence=evidence_of(trace, shared, sessions),
        seed=options.seed,
        refused=setting.refused,
        others_left_out=len(grids_of(unit_candidates(config, selected.profile))) > 1,
        caps=[
            *(Cap("low" if one.decides else "medium", one.sentence, one.decides) for one in trace.doubts),
            *(checked.caps if checked is not None else ()),
            *_assumed(trace, config, options),
        ],
    )
    choice = _beside_connector(choice, config, sizes)
    caveats = ((selected.caveat,) if selected.caveat else ()) + sizes.warnings
    if replica is None and config.enable_prefix_caching:
        caveats += ("No replica IDs in the log: assuming one server. Use --replicas N to model several.",)
    elif replica is not None and options.replicas > 1 and logged_replicas(trace) is None:
        caveats += (
            f"Requests are routed over {options.replicas} replicas ({options.route}), not as logged.",
        )
    return Analysis(
        undivided,
        trace,
        config,
        options,
        sizes,
        caveats,
        task,
        shared,
        sessions,
        candidates,
        sweep,
        outcomes,
        prefill_s,
        setting,
        choice,
        checked.info if checked is not None else None,
    )


def _assumed(trace: TokenTrace, config: EngineConfig, options: AnalyzeOptions) -> list[Cap]:
    """A step budget that nobody gave decides where long prompts are cut, and so which states exist; another release
    has other blocks."""
    if options.upgraded_from is not None:
        return [
            Cap(
                "low",
                f"vLLM {options.upgraded_from} has no match unit: this is what an upgrade to {config.version} would "
                "bring, with the blocks given. That release may choose others: run again with its start-up log.",
            )
        ]
    longest = int(trace.prompt_tokens.max())
    if not options.assumed_step_budget or longest <= SMALLEST_STEP_BUDGET:
        return []
    return [
        Cap(
            "medium",
            f"Step budget not given: assuming {config.max_num_batched_tokens:,} tokens; vLLM takes 2,048 to 16,384, by "
            "GPU. Pass --hardware or --max-num-batched-tokens.",
        )
    ]


def _beside_connector(choice: Choice, config: EngineConfig, sizes: ResolvedSizes) -> Choice:
    """A finer unit beside a KV connector is never advised without a word, nor with confidence."""
    text = finer_unit_beside_connector(config, choice.unit, sizes.scheduler_block_size)
    if text is None or choice.action not in ("set", "unset"):
        return choice
    return replace(choice, confidence="low", doubts=(text, *choice.doubts))


def _check_log(
    trace: TokenTrace,
    config: EngineConfig,
    task: ReplayTask,
    shared: SharedPrefixes,
    sessions: Int32,
    sweep: Sweep,
    outcomes: Sequence[Outcome],
    setting: Setting,
) -> LogChecked | None:
    """The log's own numbers against the replay with the current unit."""
    current = sweep.results[sweep.current_unit]
    return check_log(
        trace,
        current.hit_tokens,
        shared=shared.shared,
        sessions=sessions,
        alignment=setting.current_unit,
        trials=Trials(
            config,
            beginning(task, MOST_REQUESTS),
            {
                outcome.unit: outcome.hit_tokens
                for outcome in outcomes
                if outcome.unit != setting.current_unit
            },
            current.used_blocks,
        ),
    )


def evidence_of(trace: TokenTrace, shared: SharedPrefixes, sessions: Int32) -> Evidence:
    """What is known of the requests besides their outcomes."""
    lengths = trace.prompt_tokens
    families = np.zeros(len(trace), dtype=np.int32)
    if trace.families is not None:
        families = np.unique(np.array(trace.families), return_inverse=True)[1].astype(np.int32)
    peers = np.maximum(shared.shared_with, 0)
    repeated = (shared.shared_with >= 0) & (shared.shared == lengths - 1) & (lengths[peers] == lengths)
    return Evidence(lengths, shared.shared, sessions, families, len(trace) - int(repeated.sum()))


def _check_lengths(config: EngineConfig, trace: TokenTrace) -> None:
    """A server whose longest sequence is known is given only prompts that it takes."""
    longest = int(trace.prompt_tokens.max())
    if config.max_model_len is not None and longest >= config.max_model_len:
        raise UnusableInputError(
            "the trace has prompts that this server refuses",
            field="--max-model-len",
            found=f"{longest:,} tokens",
            wanted=f"at most {config.max_model_len - 1:,}",
            way_out=f"--max-model-len {config.max_model_len} leaves them out",
        )
