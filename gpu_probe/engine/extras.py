"""Runs beside the candidates' own: without cache, in a small pool, and rehearsals at other arrival rates.

Knows probes and records; gives sentences and figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from kvtune.analyzers.replay import replay
from kvtune.gpu_probe.engine.agreement import departures, other_tokens
from kvtune.gpu_probe.engine.candidates import Candidate
from kvtune.gpu_probe.engine.clocks import Clock
from kvtune.gpu_probe.engine.cost import NOMINAL, fit_step_cost
from kvtune.gpu_probe.engine.measure import QUALIFYING_SHARE, largest_rate, qualifying
from kvtune.gpu_probe.engine.probe import Probe, with_unit
from kvtune.gpu_probe.engine.workload import Workload
from kvtune.gpu_probe.validate import ProbeOptions

Findings = tuple[list[str], list[str]]
"""Differences and notes."""


def extra_runs(
    probe: Probe,
    workload: Workload,
    candidates: Sequence[Candidate],
    options: ProbeOptions,
    clock: Callable[[], Clock],
) -> Iterator[tuple[str, Callable[[], Findings]]]:
    """What is run beside the candidates, by name."""
    if options.exact:
        yield "without cache", lambda: _without_cache(probe, workload, candidates, options, clock)
    if options.small_pool:
        yield "small pool", lambda: _in_a_small_pool(probe, workload, candidates[-1], options, clock)


def _without_cache(
    probe: Probe,
    workload: Workload,
    candidates: Sequence[Candidate],
    options: ProbeOptions,
    clock: Callable[[], Clock],
) -> Findings:
    """The same requests with nothing reused: every logit of every candidate must have the same bits."""
    config = replace(with_unit(candidates[0].config, None), enable_prefix_caching=False)
    record = probe.run(config, workload, clock(), arrivals=options.arrivals)
    ids = workload.inputs.ids
    found = [
        text
        for candidate in candidates
        for text in other_tokens(("no cache", record), (candidate.name, candidate.records[0]), ids)
    ]
    tokens = sum(len(digests) for digests in record.digests)
    note = (
        f"exact: {tokens:,} tokens' logits compared bit for bit between no cache and {len(candidates)} units"
    )
    return found, [note]


def _in_a_small_pool(
    probe: Probe, workload: Workload, candidate: Candidate, options: ProbeOptions, clock: Callable[[], Clock]
) -> Findings:
    """One candidate again where blocks are evicted: counts as predicted, tokens as before."""
    largest = int(workload.inputs.prompt_tokens.argmax())
    for share in (0.5, 0.35, 0.25, 0.15):
        used = candidate.records[0].num_blocks_used
        config = replace(candidate.config, num_blocks=max(2, int(used * share)))
        predicted = replay(config, workload.inputs)
        if predicted.refused or predicted.evicted_blocks.sum():
            break
    if predicted.refused or not predicted.evicted_blocks.sum():
        return [], [f"no pool size both holds request {workload.inputs.ids[largest]} and evicts: not tried"]
    record = probe.run(config, workload, clock(), check=options.check)
    name = f"{candidate.name} in {config.num_blocks} blocks"
    found = list(departures(name, predicted, record, workload.inputs.ids))
    found += other_tokens((candidate.name, candidate.records[0]), (name, record), workload.inputs.ids)
    note = f"{name}: {int(record.evicted_blocks.sum()):,} blocks evicted, {int(record.hit_tokens.sum()):,} tokens hit"
    return found, [note]


def rate_that_meets(
    probe: Probe, candidate: Candidate, workload: Workload, options: ProbeOptions
) -> float | None:
    """The largest multiple of the trace's arrival rate that meets the objectives, by rehearsal under step costs."""
    if not options.slo or workload.inputs.arrival is None:
        return None
    if options.clock == "model":
        cost = NOMINAL
    else:
        steps = [step for record in candidate.records for step in record.steps]
        seconds = [taken for record in candidate.records for taken in record.step_s]
        if len(steps) < 12:
            return None
        cost = fit_step_cost(steps, seconds)
        if not cost.extrapolates:
            return None

    def met(rate: float) -> bool:
        record = probe.rehearse(candidate.config, workload, arrivals="trace", rate=rate, cost=cost)
        return qualifying(record, options.slo) >= QUALIFYING_SHARE * len(workload)

    return largest_rate(met)
