"""Runs beside the candidates' own: without cache, in a small pool, and crowded.

Knows probes and records; gives sentences and figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from kvtune.analyzers.replay import replay
from kvtune.analyzers.step_times import ASSUMED
from kvtune.gpu_probe.engine.agreement import departures, other_tokens
from kvtune.gpu_probe.engine.candidates import Candidate
from kvtune.gpu_probe.engine.clocks import Clock, ModelClock
from kvtune.gpu_probe.engine.probe import AT_ONCE, Probe
from kvtune.gpu_probe.engine.workload import Workload
from kvtune.gpu_probe.validate import ProbeOptions

Findings = tuple[list[str], list[str]]
"""Differences and notes."""


@dataclass(frozen=True)
class Extras:
    """What is run beside the candidates of a session. `few`: its first requests with their answers, for decoding."""

    probe: Probe
    workload: Workload
    few: Workload
    candidates: Sequence[Candidate]
    options: ProbeOptions
    clock: Callable[[], Clock]

    def runs(self) -> Iterator[tuple[str, Callable[[], Findings]]]:
        """By name, what the options ask for."""
        if self.options.exact:
            yield "without cache", self.without_cache
        if self.options.self_check:
            yield "small pool", self.in_a_small_pool
            yield "crowded pool", self.crowded

    def without_cache(self) -> Findings:
        """The same requests with nothing reused: every logit of every candidate must have the same bits."""
        config = replace(self.candidates[0].config, match_unit=None, enable_prefix_caching=False)
        record = self.probe.run(config, self.workload, self.clock(), arrivals=self.options.arrivals)
        ids = self.workload.inputs.ids
        found = [
            text
            for candidate in self.candidates
            for text in other_tokens(("no cache", record), (candidate.name, candidate.records[0]), ids)
        ]
        tokens = sum(len(digests) for digests in record.digests)
        units = len(self.candidates)
        return found, [
            f"exact: {tokens:,} tokens' logits compared bit for bit between no cache and {units} units"
        ]

    def in_a_small_pool(self) -> Findings:
        """The finest candidate again where blocks are evicted: counts as predicted, tokens as before."""
        candidate, inputs = self.candidates[-1], self.workload.inputs
        used = candidate.records[0].num_blocks_used
        for share in (0.5, 0.35, 0.25, 0.15):
            config = replace(candidate.config, num_blocks=max(2, int(used * share)))
            predicted = replay(config, inputs)
            if predicted.refused:
                return [], ["a pool that evicts would refuse requests: not tried"]
            if predicted.evicted_blocks.sum():
                break
        record = self.probe.run(config, self.workload, self.clock(), check=self.options.check)
        name = f"{candidate.name} in {config.num_blocks} blocks"
        found = list(departures(name, predicted, record, inputs.ids))
        found += other_tokens((candidate.name, candidate.records[0]), (name, record), inputs.ids)
        evicted, hit = int(record.evicted_blocks.sum()), int(record.hit_tokens.sum())
        return found, [f"{name}: {evicted:,} blocks evicted, {hit:,} tokens hit"]

    def crowded(self) -> Findings:
        """A few requests at once, decoding beside one another, in a pool that preempts: tokens as without cache."""
        config = self.candidates[-1].config
        rehearsed = self.probe.rehearse(config, self.few, arrivals="trace", rate=AT_ONCE)
        for num_blocks in range(rehearsed.num_blocks_used, 2, -1):
            config = replace(config, num_blocks=num_blocks)
            rehearsed = self.probe.rehearse(config, self.few, arrivals="trace", rate=AT_ONCE)
            if rehearsed.refused:
                return [], ["a pool that preempts would refuse requests: not tried"]
            if rehearsed.preemptions.sum():
                break
        alone = replace(config, match_unit=None, enable_prefix_caching=False, num_blocks=None)
        want = self.probe.run(alone, self.few, ModelClock(ASSUMED.step_s))
        record = self.probe.run(
            config, self.few, ModelClock(ASSUMED.step_s), arrivals="trace", rate=AT_ONCE, check=True
        )
        name = f"{self.candidates[-1].name}, {len(self.few)} requests at once in {num_blocks} blocks"
        ids = self.few.inputs.ids
        found = list(departures(name, rehearsed, record, ids))
        found += other_tokens(("no cache", want), (name, record), ids)
        tokens = sum(map(len, record.greedy))
        return found, [f"{name}: {int(record.preemptions.sum())} preemptions, {tokens:,} tokens decoded"]
