"""The main job in one call: a `TokenTrace` and a server's settings in, a `Report` out.

    shared prefixes -> candidates -> replay per unit -> choice -> losses, families -> Report

Each step stands in its own file; here they are only put in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from kvtune.analyzers.advice import recommendation
from kvtune.analyzers.families import family_rows
from kvtune.analyzers.hash_cost import HashCost, measure_hash_cost, measure_lookup_cost
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.levers import Baseline, Found, LeverInputs, advise_families, find_levers
from kvtune.analyzers.losses import losses_by_request
from kvtune.analyzers.options import AnalyzeOptions, Provenance
from kvtune.analyzers.pool.capacity import explore_pools
from kvtune.analyzers.pool.caveat import pool_caveat
from kvtune.analyzers.pool.footprint import footprints, pool_for
from kvtune.analyzers.pool.units import ReplayedUnits
from kvtune.analyzers.prefix_tree import build_prefix_tree
from kvtune.analyzers.profiles import profile_for
from kvtune.analyzers.recommend import Choice, Outcome, choose
from kvtune.analyzers.replay import ReplayInput, ReplayResult
from kvtune.analyzers.replays import ReplayTask
from kvtune.analyzers.report import (
    LossesBySetting,
    Measured,
    Refused,
    ReplayInfo,
    Report,
)
from kvtune.analyzers.resolver import ResolvedSizes, resolve_sizes
from kvtune.analyzers.routing import caches_of, logged_replicas
from kvtune.analyzers.rows import candidate_rows, engine_info, losses_row, request_rows, shared_info
from kvtune.analyzers.sessions import find_sessions
from kvtune.analyzers.shared import SharedPrefixes, find_shared_prefixes
from kvtune.analyzers.span import check_span, restrict_to_span
from kvtune.analyzers.sweep import Progress, Sweep, no_progress, replay_input, sweep_units
from kvtune.analyzers.units import (
    UnitCandidate,
    default_match_unit,
    grids_of,
    minimum_shared_prefix,
    unit_candidates,
)
from kvtune.analyzers.why import Setting, explain_choice
from kvtune.analyzers.windows import gain_by_window
from kvtune.tokenization.errors import NoUsableRequestError, UnusableInputError
from kvtune.tokenization.trace import Int32, Int64, TokenTrace


@dataclass(frozen=True)
class Analysis:
    """Everything found, before it is put into rows. `trace` has a namespace per replica, `undivided` has not.

    `setting` speaks of grids: its units are the effective ones of the unit in force and of the default.
    """

    undivided: TokenTrace
    trace: TokenTrace
    config: EngineConfig
    options: AnalyzeOptions
    sizes: ResolvedSizes
    caveats: tuple[str, ...]
    replica: Int32 | None
    shared: SharedPrefixes
    sessions: Int32
    candidates: tuple[UnitCandidate, ...]
    sweep: Sweep
    outcomes: list[Outcome]
    setting: Setting
    choice: Choice

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

    def units(self, inputs: ReplayInput) -> ReplayedUnits:
        """What there was to choose from, to be replayed in other pools."""
        grids = [outcome.unit for outcome in self.outcomes]
        return ReplayedUnits(
            self.config,
            ReplayTask(inputs, self.replica, self.options.arrivals, self.options.cost),
            match_units={grid: self.unit_on(grid) for grid in grids},
            results={grid: self.result_on(grid) for grid in grids},
            current_unit=self.setting.current_unit,
            recommended_unit=self.choice.unit,
            step_cost=self.setting.step_cost,
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
    if options.arrivals == "trace":
        config = replace(config, scheduling="async")  # as servers run; one at a time, it makes no difference
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
    sweep = sweep_units(
        config,
        ReplayTask(
            replay_input(trace, shared), replica, options.arrivals, options.cost, options.check_integrity
        ),
        candidates,
        default_unit=default_match_unit(config),
        workers=options.workers,
        progress=progress,
        meanwhile=partial(meanwhile, trace),
    )
    outcomes = sweep.outcomes(candidates)
    grid = {row.unit: row.effective_unit for row in candidates}
    setting = Setting(
        prompt_tokens=trace.prompt_tokens,
        repeated=_repeated(trace),
        current_unit=grid[sweep.current_unit],
        default_unit=grid[sweep.default_unit],
        scheduler_block_size=sizes.scheduler_block_size,
        step_cost=options.step_cost_tokens,
        has_recurrent_state=any(group.kind == "mamba" for group in config.groups),
        caches=config.enable_prefix_caching,
    )
    choice = choose(
        outcomes,
        current_unit=setting.current_unit,
        default_unit=setting.default_unit,
        step_cost=options.step_cost_tokens,
        sessions=sessions,
        seed=options.seed,
        others_left_out=len(grids_of(unit_candidates(config, selected.profile))) > 1,
    )
    caveats = ((selected.caveat,) if selected.caveat else ()) + sizes.warnings
    if replica is None and config.enable_prefix_caching:
        caveats += ("the log names no replicas: all requests were taken to meet one cache (--replicas)",)
    elif replica is not None and options.replicas > 1 and logged_replicas(trace) is None:
        caveats += (
            f"requests were routed over {options.replicas} replicas by {options.route}, not as logged",
        )
    return Analysis(
        undivided,
        trace,
        config,
        options,
        sizes,
        caveats,
        replica,
        shared,
        sessions,
        candidates,
        sweep,
        outcomes,
        setting,
        choice,
    )


def analyze(
    trace: TokenTrace,
    config: EngineConfig,
    options: AnalyzeOptions,
    provenance: Provenance,
    progress: Progress = no_progress,
    lever_inputs: LeverInputs | None = None,
) -> Report:
    """Find the match unit that this trace wants on this server. The caller completes `measured`.

    Args:
        lever_inputs: what `options.levers` may use beside the trace.

    Raises: as `find`; UnusableInputError where an option needs what the trace lacks.
    """
    costs: dict[int, HashCost] = {}
    found = find(
        trace, config, options, progress, lambda its, units: costs.update(measure_hash_cost(its, units))
    )
    config = found.config
    trace, sizes, shared = found.trace, found.sizes, found.shared.shared
    inputs = replay_input(trace, found.shared)
    today, then = found.result_on(found.setting.current_unit), found.result_on(found.choice.unit)
    losses_today, losses_then = (
        losses_by_request(
            found.config_on(grid),
            inputs,
            found.replica,
            shared,
            options.arrivals,
            result,
            options.cost,
        )
        for grid, result in ((found.setting.current_unit, today), (found.choice.unit, then))
    )
    levers = _levers(found, lever_inputs or LeverInputs(), progress) if options.levers else []
    units = found.units(inputs)
    needs = footprints(units, trace.ids, replay_again=options.capacity_curve)
    points, pools = explore_pools(units, needs.smallest, progress) if options.capacity_curve else ((), None)
    return Report(
        kvtune_version=provenance.kvtune_version,
        command=provenance.command,
        measured=_measured(found, costs, provenance.created),
        trace=msgspec.structs.replace(
            provenance.trace,
            sessions=int(found.sessions.max()) + 1,
            retokenised_outputs=trace.retokenised_outputs,
        ),
        tokenizer=provenance.tokenizer,
        engine=engine_info(config, sizes, found.sweep, provenance.size_source),
        replay=ReplayInfo(
            arrivals=options.arrivals,
            outputs=options.outputs,
            scheduling=config.scheduling,
            step_cost_tokens=options.step_cost_tokens,
            refused=tuple(
                Refused(
                    id=trace.ids[index],
                    blocks_needed=pool_for(found.config_on(found.setting.current_unit), inputs, index).on_hit
                    - 1,
                )
                for index in today.refused
            ),
        ),
        shared=shared_info(trace, shared, sizes.scheduler_block_size, options.bin_width),
        candidates=candidate_rows(
            found.candidates,
            found.sweep,
            shared=shared,
            prompt_tokens=trace.prompt_tokens,
            sessions=found.sessions,
            step_cost=options.step_cost_tokens,
            seed=options.seed,
        ),
        losses=LossesBySetting(
            current=losses_row(found.setting.current_unit, int(today.hit_tokens.sum()), losses_today),
            recommended=losses_row(found.choice.unit, int(then.hit_tokens.sum()), losses_then),
        ),
        families=advise_families(
            family_rows(
                trace,
                shared,
                {outcome.unit: outcome.hit_tokens for outcome in found.outcomes},
                recommended=found.choice.unit,
                losses=losses_then,
                minimum_shared=minimum_shared_prefix(config),
                modulo=sizes.scheduler_block_size,
                bin_width=options.bin_width,
                caches=config.enable_prefix_caching,
            ),
            trace,
            levers,
        ),
        capacity=points,
        footprint=needs,
        pool_advice=pools,
        windows=gain_by_window(
            trace.arrival,
            found.outcomes,
            current_unit=found.setting.current_unit,
            recommended_unit=found.choice.unit,
            step_cost=options.step_cost_tokens,
            window_s=options.window_s,
        )
        if options.window_s
        else (),
        levers=tuple(one.lever for one in levers),
        recommendation=recommendation(
            found.choice,
            why=explain_choice(found.choice, found.outcomes, found.setting),
            setting=found.setting,
            caveats=(
                *found.caveats,
                *provenance.assumed,
                *pool_caveat(config, needs, pools, found.choice.unit),
            ),
        ),
        requests=request_rows(trace, found.shared, found.outcomes) if options.per_request else msgspec.UNSET,
    )


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


def _repeated(trace: TokenTrace) -> Int64:
    """The longest prefix of each prompt that a later prompt repeats, int64[R]."""
    return build_prefix_tree(
        trace.tokens,
        trace.offsets,
        trace.namespace,
        span=trace.span,
        lengths=trace.prompt_tokens,
        backwards=True,
    ).shared


def _levers(found: Analysis, inputs: LeverInputs, progress: Progress) -> list[Found]:
    """Every lever on top of the recommended unit."""
    grid = found.choice.unit
    base = Baseline(
        trace=found.trace,
        config=found.config_on(grid),
        options=found.options,
        replica=found.replica,
        sessions=found.sessions,
        shared=found.shared,
        result=found.result_on(grid),
    )
    levers = find_levers(base, found.undivided, progress, inputs.wording, inputs.others)
    inputs.keep_primes([prompt for one in levers for prompt in one.prompts])
    return levers


def _measured(found: Analysis, costs: dict[int, HashCost], created: str) -> Measured:
    """What hashing and looking up cost on this machine, for every unit that was replayed."""
    units = sorted(found.sweep.results)
    lookup_s = measure_lookup_cost()
    return Measured(
        created=created,
        wall_s=0.0,
        cpu_s=0.0,
        hash_cpu_s={unit: costs[unit].seconds for unit in units},
        hash_samples=sum(cost.samples for cost in costs.values()),
        lookup_cpu_s={unit: lookup_s * int(found.sweep.results[unit].lookup_probes.sum()) for unit in units},
    )
