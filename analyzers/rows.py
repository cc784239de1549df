"""Parts of the report that only restate what was found: sizes, shared prefixes, candidates, losses, requests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from kvtune.analyzers.decision import Outcome, session_interval
from kvtune.analyzers.ends import count_ends_by_part
from kvtune.analyzers.hash_cost import hash_positions
from kvtune.analyzers.histogram import histogram_of_ends
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.replay import ReplayResult
from kvtune.analyzers.report import (
    Candidate,
    EngineInfo,
    GroupInfo,
    Histogram,
    Losses,
    RequestRow,
    SharedInfo,
    SizeSource,
)
from kvtune.analyzers.resolver import ResolvedSizes
from kvtune.analyzers.shared import SharedPrefixes
from kvtune.analyzers.sweep import Sweep
from kvtune.analyzers.units import UnitCandidate, minimum_shared_prefix
from kvtune.tokenization.trace import Float64, Int32, Int64, TokenTrace


def engine_info(config: EngineConfig, sizes: ResolvedSizes, sweep: Sweep, source: SizeSource) -> EngineInfo:
    """The server as it runs today."""
    return EngineInfo(
        name="vllm",
        version=config.version,
        source=source,
        groups=tuple(
            GroupInfo(
                kind=group.kind,
                block_size=group.block_size,
                count=group.count,
                window=group.window,
                mode=(group.mode or "align") if group.kind == "mamba" else None,
                cacheable=group.cacheable,
            )
            for group in config.groups
        ),
        scheduler_block_size=sizes.scheduler_block_size,
        default_match_unit=sweep.default_unit,
        current_match_unit=sweep.current_unit,
        cache_hit_alignment=sizes.cache_hit_alignment,
        partial_hits=sizes.partial_hits,
        num_blocks=config.num_blocks,
        max_num_batched_tokens=config.max_num_batched_tokens,
        minimum_reusable_prefix=sizes.minimum_reusable_prefix,
        minimum_shared_prefix=minimum_shared_prefix(
            config, sizes.cache_hit_alignment, partial_hits=sizes.partial_hits
        ),
        enable_prefix_caching=config.enable_prefix_caching,
    )


def candidate_rows(
    candidates: Sequence[UnitCandidate],
    sweep: Sweep,
    *,
    shared: Int64,
    prompt_tokens: Int64,
    sessions: Int32,
    step_cost: int,
    seed: int,
    prefill_s: Mapping[int, Float64] | None = None,
) -> tuple[Candidate, ...]:
    """One row per candidate, coarsest first; replayed figures are relative to the current unit."""
    current = sweep.results[sweep.current_unit]
    total = int(prompt_tokens.sum())
    rows = []
    for candidate in candidates:
        unit = candidate.unit
        row = Candidate(
            unit=unit,
            valid=candidate.valid,
            effective_unit=candidate.effective_unit,
            reason=candidate.reason,
            ideal_hit_tokens=int((shared // unit * unit).sum()),
            hash_positions=hash_positions(prompt_tokens, unit),
        )
        result = sweep.of(candidate)
        if result is None:
            rows.append(row)
            continue
        gains = result.hit_tokens - current.hit_tokens
        seconds, today = (
            _prefill_time(prefill_s, sweep, each) for each in (candidate.unit, sweep.current_unit)
        )
        gain, steps = int(gains.sum()), int(result.prefill_steps.sum())
        extra = steps - int(current.prefill_steps.sum())
        rows.append(
            Candidate(
                **{name: getattr(row, name) for name in _LISTED},
                engine_hit_tokens=int(result.hit_tokens.sum()),
                recomputed_tokens=total - int(result.hit_tokens.sum()),
                gain_tokens=gain,
                gain_fraction=gain / total,
                gain_ci95=session_interval(gains, sessions, seed),
                prefill_steps=steps,
                extra_prefill_steps=extra,
                net_gain_tokens=gain - step_cost * extra,
                break_even_step_tokens=gain / extra if extra > 0 and gain >= 0 else None,
                copy_on_write_copies=int(result.copies.sum()),
                evicted_blocks=int(result.evicted_blocks.sum()),
                preemptions=int(result.preemptions.sum()),
                lookup_probes=int(result.lookup_probes.sum()),
                hits_sha256=digest_of_hits(result),
                prefill_s=seconds,
                prefill_change=seconds / today - 1 if seconds is not None and today else None,
            )
        )
    return tuple(rows)


def _prefill_time(prefill_s: Mapping[int, Float64] | None, sweep: Sweep, unit: int) -> float | None:
    if prefill_s is None:
        return None
    return float(prefill_s[unit if unit in prefill_s else sweep.default_unit].sum())


_LISTED = ("unit", "valid", "effective_unit", "reason", "ideal_hit_tokens", "hash_positions")


def digest_of_hits(result: ReplayResult) -> str:
    """SHA-256 of the hit tokens as little-endian int64 in request order."""
    return hashlib.sha256(result.hit_tokens.astype("<i8").tobytes()).hexdigest()


def shared_info(trace: TokenTrace, shared: Int64, modulo: int, bin_width: int | None) -> SharedInfo:
    """What the traffic shares, whatever the engine; `modulo` is the scheduler block."""
    ends = histogram_of_ends(shared, modulo, bin_width)
    return SharedInfo(
        requests_sharing=int((shared > 0).sum()),
        tokens=int(shared.sum()),
        histogram=Histogram(modulo=ends.modulo, bin_width=ends.bin_width, counts=ends.counts),
        just_missed=ends.just_missed,
        ends_in=count_ends_by_part(trace, shared, modulo, bin_width),
    )


def losses_row(grid: int, hit_tokens: int, losses: Mapping[str, Int64]) -> Losses:
    """Sums of per-request losses; with the hit tokens they sum to what is shared."""
    sums = {kind: int(tokens.sum()) for kind, tokens in losses.items()}
    return Losses(unit=grid, hit_tokens=hit_tokens, **sums)


def request_rows(
    trace: TokenTrace, shared: SharedPrefixes, outcomes: Sequence[Outcome]
) -> tuple[RequestRow, ...]:
    """One row per request, in replay order; hits by grid."""
    lengths, common, peers = (
        array.tolist() for array in (trace.prompt_tokens, shared.shared, shared.shared_with)
    )
    hits = {outcome.unit: outcome.hit_tokens.tolist() for outcome in outcomes}
    return tuple(
        RequestRow(
            id=trace.ids[index],
            prompt_tokens=lengths[index],
            shared_tokens=common[index],
            shared_with=trace.ids[peers[index]] if peers[index] >= 0 else None,
            hit_tokens={unit: tokens[index] for unit, tokens in hits.items()},
        )
        for index in range(len(trace))
    )
