"""The main job in one call: a `TokenTrace` and a server's settings in, a `Report` out.

    trace, server -> Analysis (replays of the units, the choice) -> losses, families, pools, levers -> Report

Each step stands in its own file; here they are only put in order.
"""

from __future__ import annotations

import math

import msgspec

from kvtune.analyzers.advice import Worth, recommendation
from kvtune.analyzers.analysis import Analysis, find
from kvtune.analyzers.decision import decision_line, net_gain
from kvtune.analyzers.deployment import deployment_caveats
from kvtune.analyzers.drafter_cost import drafter_caveat
from kvtune.analyzers.families import family_rows
from kvtune.analyzers.hash_cost import PrefixCosts, algorithm_caveat, measure_prefix_costs
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.levers import Baseline, Found, LeverInputs, advise_families, find_culprits, find_levers
from kvtune.analyzers.load import load_points, telling_units
from kvtune.analyzers.losses import losses_by_request
from kvtune.analyzers.options import AnalyzeOptions, Provenance
from kvtune.analyzers.plan import leading_lever, plan_of, unit_of
from kvtune.analyzers.pool.capacity import explore_pools
from kvtune.analyzers.pool.caveat import pool_caveat, pool_confidence
from kvtune.analyzers.pool.footprint import footprints, pool_for
from kvtune.analyzers.report import (
    DecisionRangeInfo,
    Lever,
    LoadPoint,
    LossesBySetting,
    Measured,
    Refused,
    ReplayInfo,
    Report,
)
from kvtune.analyzers.rows import candidate_rows, engine_info, losses_row, request_rows, shared_info
from kvtune.analyzers.step_times import StepTimes, StepTimesInfo
from kvtune.analyzers.step_times.overhead import step_overhead
from kvtune.analyzers.sweep import Progress, no_progress
from kvtune.analyzers.units import minimum_shared_prefix
from kvtune.analyzers.why import explain_choice
from kvtune.analyzers.windows import gain_by_window
from kvtune.tokenization.trace import TokenTrace


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
    costs: list[PrefixCosts] = []
    found = find(
        trace,
        config,
        options,
        progress,
        lambda its, units: costs.append(measure_prefix_costs(its, units, options.known_costs)),
    )
    config = found.config
    trace, sizes, shared = found.trace, found.sizes, found.shared.shared
    inputs = found.task.inputs
    levers = _levers(found, lever_inputs or LeverInputs(), progress)
    lever = leading_lever(found.choice, [one.lever for one in levers])
    steps = plan_of(found.choice, found.setting, lever, _net_gains(found))
    advised = _advised_unit(found, lever)
    today, then = found.result_on(found.setting.current_unit), found.result_on(advised)
    losses_today, losses_then = (
        losses_by_request(
            found.config_on(grid),
            inputs,
            found.task.replica,
            shared,
            options.arrivals,
            result,
            options.step_times,
        )
        for grid, result in ((found.setting.current_unit, today), (advised, then))
    )
    units = found.units()
    needs = footprints(units, trace.ids, replay_again=options.capacity_curve)
    points, pools = explore_pools(units, needs.smallest, progress) if options.capacity_curve else ((), None)
    return Report(
        kvtune_version=provenance.kvtune_version,
        command=provenance.command,
        measured=_measured(found, costs[0], provenance.created),
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
            step_cost_tokens=options.step_overhead,
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
            step_cost=options.step_overhead,
            seed=options.seed,
            prefill_s=found.prefill_s,
        ),
        step_times=_step_times(options.step_times) if found.prefill_s is not None else None,
        hardware=provenance.hardware,
        log_check=found.log_check,
        losses=LossesBySetting(
            current=losses_row(found.setting.current_unit, int(today.hit_tokens.sum()), losses_today),
            recommended=losses_row(advised, int(then.hit_tokens.sum()), losses_then),
        ),
        families=advise_families(
            family_rows(
                trace,
                shared,
                {outcome.unit: outcome.hit_tokens for outcome in found.outcomes},
                recommended=advised,
                losses=losses_then,
                minimum_shared=minimum_shared_prefix(
                    config, sizes.cache_hit_alignment, partial_hits=sizes.partial_hits
                ),
                modulo=sizes.scheduler_block_size,
                bin_width=options.bin_width,
                caches=config.enable_prefix_caching,
                keeps_states=found.setting.has_recurrent_state,
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
            objective=found.setting.objective,
            prompt_tokens=trace.prompt_tokens,
            window_s=options.window_s,
        )
        if options.window_s
        else (),
        levers=tuple(one.lever for one in levers),
        recommendation=recommendation(
            found.choice,
            why=explain_choice(found.choice, found.outcomes, found.setting),
            setting=found.setting,
            worth=Worth(
                gpus=options.step_times.info.tensor_parallel,
                duration_s=provenance.trace.duration_s,
                gpu_hour_price=options.gpu_hour_price,
            ),
            caveats=(
                *found.caveats,
                *deployment_caveats(found, provenance),
                *drafter_caveat(found, advised),
                *algorithm_caveat(config.hash_algo),
                *provenance.assumed,
                *pool_caveat(config, needs, pools, found.choice.unit),
            ),
            lever=lever,
            plan=steps,
            pool_allows=pool_confidence(
                config,
                needs,
                pools,
                points,
                recommended_unit=found.choice.unit,
                prompt_tokens=int(trace.prompt_tokens.sum()),
                least_blocks=_least_blocks(config, provenance),
            ),
        ),
        plan=steps,
        decision_line=tuple(
            DecisionRangeInfo(
                from_tokens=float(part.from_tokens),
                to_tokens=None if part.to_tokens is None else float(part.to_tokens),
                unit=part.unit,
            )
            for part in decision_line(found.outcomes)
        )
        if len(found.outcomes) > 1
        else (),
        load=_load(found, progress) if options.loads else (),
        requests=request_rows(trace, found.shared, found.outcomes) if options.per_request else msgspec.UNSET,
    )


def _least_blocks(config: EngineConfig, provenance: Provenance) -> int | None:
    """The low end of the pool's estimate, where the replay took its size from the estimate."""
    estimate = provenance.hardware.settled.num_blocks if provenance.hardware is not None else None
    return estimate.low if estimate is not None and config.num_blocks == estimate.estimate else None


def _net_gains(found: Analysis) -> dict[int, int]:
    """Net tokens over the current unit, by hit alignment."""
    by_unit = {outcome.unit: outcome for outcome in found.outcomes}
    current = by_unit[found.setting.current_unit]
    return {
        unit: net_gain(outcome, current, found.setting.step_overhead) for unit, outcome in by_unit.items()
    }


def _advised_unit(found: Analysis, lever: Lever | None) -> int:
    """The hit alignment of the plan: the leading optimization's, where it was replayed by itself, else the choice's."""
    unit = unit_of(lever) if lever is not None else None
    replayed = {outcome.unit for outcome in found.outcomes}
    return unit if unit is not None and unit in replayed else found.choice.unit


def _step_times(times: StepTimes) -> StepTimesInfo:
    """Where they come from, and the overhead that they give a small step."""
    found = step_overhead(times)
    known = (found.low, found.high) if math.isfinite(found.high) else None
    return msgspec.structs.replace(times.info, overhead_tokens=known)


def _load(found: Analysis, progress: Progress) -> tuple[LoadPoint, ...]:
    """The units that tell most, under other loads."""
    least = min(found.outcomes, key=lambda outcome: float(found.setting.objective.cost(outcome).sum()))
    line = [part.unit for part in decision_line(found.outcomes)]
    units = telling_units(
        [outcome.unit for outcome in found.outcomes],
        [found.setting.current_unit, found.choice.unit, found.setting.default_unit, least.unit, *line],
    )
    return load_points(
        {unit: found.config_on(unit) for unit in units},
        found.task,
        current_unit=found.setting.current_unit,
        objective=found.setting.objective,
        multipliers=found.options.loads,
        workers=found.options.workers,
        progress=progress,
    )


def _levers(found: Analysis, inputs: LeverInputs, progress: Progress) -> list[Found]:
    """What `options` let be tried on top of the recommended unit."""
    if not (found.options.levers or found.options.culprits):
        return []
    grid = found.choice.unit
    base = Baseline(
        trace=found.trace,
        config=found.config_on(grid),
        options=found.options,
        replica=found.task.replica,
        sessions=found.sessions,
        shared=found.shared,
        result=found.result_on(grid),
    )
    if not found.options.levers:
        return find_culprits(base, inputs.wording)
    levers = find_levers(base, found.undivided, progress, inputs.wording, inputs.others)
    inputs.keep_primes([prompt for one in levers for prompt in one.prompts])
    return levers


def _measured(found: Analysis, costs: PrefixCosts, created: str) -> Measured:
    """What hashing and looking up cost on this machine, for every unit that was replayed."""
    results = found.sweep.results
    units = sorted(results)
    return Measured(
        created=created,
        wall_s=0.0,
        cpu_s=0.0,
        hash_cpu_s={unit: costs.hashes[unit].seconds for unit in units},
        hash_samples=sum(cost.samples for cost in costs.hashes.values()),
        lookup_cpu_s={unit: costs.lookup_s * int(results[unit].lookup_probes.sum()) for unit in units},
    )
