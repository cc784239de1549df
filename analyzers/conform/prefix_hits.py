"""Cases of `prefix-hits/1`: requests through an engine, and what it did with each of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from kvtune.analyzers.bookkeeping.engine_loop import EngineLoop
from kvtune.analyzers.bookkeeping.scheduler import Scheduler, make_scheduler
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.bookkeeping.step_plan import StepPlan
from kvtune.analyzers.conform.cases import case_sequences, engine_config, unknown_settings
from kvtune.analyzers.conform.errors import UNKNOWN, Meaning, meaning_of, meaning_of_refusal
from kvtune.analyzers.conform.result import ConformResult, EngineFailure, NotModelled
from kvtune.analyzers.profiles import ReleaseProfile
from kvtune.analyzers.refusal import EngineRefusal
from kvtune.analyzers.resolver import ResolvedSizes, resolve_sizes

_RESOLVED = {
    "scheduler_block_size": "scheduler_block_size",
    "hash_block_size": "hash_block_size",
    "cache_hit_alignment_tokens": "cache_hit_alignment",
    "partial_hits": "partial_hits",
    "hash_lookahead_tokens": "hash_lookahead_tokens",
    "eagle_block_drop": "eagle_block_drop",
}


@dataclass
class _Observed:
    """What happened to one request."""

    chunks: list[int] = field(default_factory=list)
    admissions: list[list[int]] = field(default_factory=list)
    junction: int = 0


class _NeverFitsError(Exception):
    """A waiting request can never fit the pool."""


def conform_cases(document: dict[str, Any], profile: ReleaseProfile) -> ConformResult:
    """Compare every case of a `prefix-hits/1` document."""
    result = ConformResult()
    for case in document["cases"]:
        result.cases += 1
        result.requests += len(case["requests"])
        _conform_case(result, case, profile)
    return result


def _conform_case(result: ConformResult, case: dict[str, Any], profile: ReleaseProfile) -> None:
    name = case["name"]
    wanted_error = case.get("error")
    result.not_modelled += [NotModelled(name, setting) for setting in unknown_settings(case)]
    config = engine_config(case, profile)
    try:
        sizes = resolve_sizes(config, profile)
    except EngineRefusal as refusal:
        _compare_error(result, name, wanted_error, meaning_of_refusal(refusal))
        return
    if "resolved" in case:
        for field_name, ours in _RESOLVED.items():
            result.compare(
                name, None, f"resolved.{field_name}", case["resolved"][field_name], getattr(sizes, ours)
            )
    run = _CaseRun(case, profile, make_scheduler(config, profile, sizes), sizes)
    try:
        rows = run.concurrent() if case["mode"] == "concurrent" else run.sequential()
        error: Meaning | None = None
    except _NeverFitsError:
        rows = run.rows
        error = ("NoProgress", "never_fits", None)
    wanted_rows = case.get("expect", [])
    if wanted_error is not None and _is_failure(wanted_error):
        result.engine_failures.append(EngineFailure(name, len(wanted_rows), wanted_error["type"]))
        rows = rows[: len(wanted_rows)]
    else:
        _compare_error(result, name, wanted_error, error)
    result.compare(name, None, "requests", len(wanted_rows), len(rows))
    for place, (wanted, found) in enumerate(zip(wanted_rows, rows, strict=False)):
        for key, value in wanted.items():
            result.compare(name, place, key, value, found.get(key))
        if "junction" not in wanted:
            result.compare(name, place, "junction", 0, found.get("junction", 0))
    for key, value in case.get("totals", {}).items():
        result.compare(name, None, f"totals.{key}", value, run.totals(rows)[key])


def _is_failure(error: dict[str, str]) -> bool:
    """Whether the engine failed while it ran, by an assertion without words or an error of Python's."""
    bare = not error["message"] or error["type"] in ("IndexError", "KeyError", "TypeError")
    return error["stage"] == "run" and bare and meaning_of(error)[1] == UNKNOWN


def _compare_error(
    result: ConformResult, name: str, wanted: dict[str, str] | None, found: Meaning | None
) -> None:
    result.compare(name, None, "error", meaning_of(wanted) if wanted else None, found)


class _CaseRun:
    """One case on one engine."""

    def __init__(
        self, case: dict[str, Any], profile: ReleaseProfile, scheduler: Scheduler, sizes: ResolvedSizes
    ) -> None:
        self.case = case
        self.scheduler = scheduler
        self.pool = scheduler.coordinator.pool
        self.loop = EngineLoop(scheduler)
        self.sequences = case_sequences(case, profile, sizes.hash_lookahead_tokens)
        self.observed = [_Observed() for _ in self.sequences]
        self.copies = 0
        self.rows: list[dict[str, Any]] = []

    def sequential(self) -> list[dict[str, Any]]:
        """Each request finishes before the next one is added."""
        pool, lookup = self.pool, self.scheduler.coordinator.lookup
        many = len(self.case["config"]["groups"]) > 1
        for sequence in self.sequences:
            before = pool.evicted_blocks, pool.new_blocks, self.copies
            self.scheduler.add_request(sequence)
            group_hits = lookup.longest_by_group(sequence) if many and lookup is not None else None
            while self.loop.has_work:
                self._step()
            row = self._row(sequence)
            row["evicted"] = pool.evicted_blocks - before[0]
            row["new_blocks"] = pool.new_blocks - before[1]
            row["cow"] = self.copies - before[2]
            row["keys"] = self.scheduler.coordinator.num_keys
            row["group_hits"] = group_hits
            self.rows.append(row)
        return self.rows

    def concurrent(self) -> list[dict[str, Any]]:
        """Requests are added before the first step whose number is at least their `arrive`."""
        arrivals = [request.get("arrive", 0) for request in self.case["requests"]]
        pending = deque(sorted(range(len(arrivals)), key=lambda place: (arrivals[place], place)))
        loop = self.loop
        while pending or loop.has_work:
            while pending and arrivals[pending[0]] <= loop.num_steps:
                self.scheduler.add_request(self.sequences[pending.popleft()])
            if loop.has_work:
                self._step()
            else:
                loop.num_steps = arrivals[pending[0]]
        for sequence, observed in zip(self.sequences, self.observed, strict=True):
            row = self._row(sequence)
            row["admissions"] = observed.admissions
            self.rows.append(row)
        return self.rows

    def _step(self) -> None:
        number = self.loop.num_steps
        plan, _ = self.loop.step()
        if plan is None:
            return
        self._observe(plan, number)
        if self.loop.stuck(plan) is not None:
            raise _NeverFitsError

    def _observe(self, plan: StepPlan, number: int) -> None:
        self.copies += len(plan.copies)
        for chunk in plan.chunks:
            sequence = chunk.sequence
            observed = self.observed[sequence.index]
            if chunk.start < sequence.num_prompt_tokens:
                observed.chunks.append(chunk.num_tokens)
            if (
                chunk.hit is not None
                and self.scheduler.coordinator.lookup is not None
                and not sequence.skip_reading
            ):
                if not observed.admissions:
                    observed.junction = chunk.hit.junction
                observed.admissions.append([number, chunk.hit.tokens])

    def _row(self, sequence: Sequence) -> dict[str, Any]:
        observed = self.observed[sequence.index]
        hit = observed.admissions[0][1] if observed.admissions else 0
        return {
            "prompt": sequence.num_prompt_tokens,
            "hit": hit,
            "recomputed": sequence.num_prompt_tokens - hit,
            "chunks": observed.chunks,
            "preemptions": sequence.num_preemptions,
            "junction": observed.junction,
        }

    def totals(self, rows: list[dict[str, Any]]) -> dict[str, int]:
        """The sums over all requests, and the pool at the end."""
        return {
            "prompt": sum(row["prompt"] for row in rows),
            "hit": sum(row["hit"] for row in rows),
            "preemptions": sum(row["preemptions"] for row in rows),
            "evicted": self.pool.evicted_blocks,
            "new_blocks": self.pool.new_blocks,
            "cow": self.copies,
            "keys": self.scheduler.coordinator.num_keys,
            "free_blocks": self.pool.num_free,
            "steps": self.loop.num_steps,
        }
