"""Prediction and a real server, side by side: one start per candidate, or the server that is running.

    serve     current, recommended, next, next, recommended, current   each a start of its own, never two at once
    endpoint  the unit that the server runs with

Gives the report's `Validation` and a verdict. Knows the order of things; prints nothing.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from kvtune.analyzers.fitted_cost import FittedStepCost
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.validation import Validation
from kvtune.gpu_probe.live.canary import vocabulary_of
from kvtune.gpu_probe.live.candidates import candidate_rows
from kvtune.gpu_probe.live.client import LiveClient
from kvtune.gpu_probe.live.command import ServeLine
from kvtune.gpu_probe.live.facts import ServerFacts, read_facts
from kvtune.gpu_probe.live.isolation import check_quiet
from kvtune.gpu_probe.live.measure import Measured, Measurement
from kvtune.gpu_probe.live.options import Listener, LiveOptions, Subject
from kvtune.gpu_probe.live.server import started
from kvtune.gpu_probe.live.step_times import MOST_REQUESTS, StepTimesMeasurement
from kvtune.gpu_probe.live.verdict import distinct_units, palindromic, sentence, unit_name
from kvtune.gpu_probe.rate_search import how_executed
from kvtune.tokenization.errors import MissingDependencyError

ChooseUnits = Callable[[EngineConfig], Sequence[int | None]]
"""Told what the server resolved; gives the other candidates, None for the flag unset."""

_DYING_S = 1.0
"""A server whose engine died takes a moment to end."""

RUNG = "L3"
"""The user's own server: the top of the ladder of fidelity."""


@dataclass(frozen=True)
class LiveResult:
    """What was found. `runs` are in the order of running; `logs` is the folder with the servers' logs.

    `interrupted`: the user ended it, and only the runs that had finished are here.
    """

    validation: Validation
    verdict: str
    runs: tuple[Measured, ...]
    logs: Path | None = None
    interrupted: bool = False


def validate_by_serving(
    subject: Subject, line: ServeLine, choose: ChooseUnits, options: LiveOptions, listener: Listener
) -> LiveResult:
    """Start the user's server once per candidate and run, replay, compare, stop.

    The first start has the unit that the line asks for; what it resolved decides the other candidates.

    Raises:
        MissingDependencyError: a server does not start, or fails; its log is kept.
        UnusableInputError: the options do not fit the trace.
    """
    measurement = Measurement(subject, options, listener)
    logs = options.log_dir or Path(tempfile.mkdtemp(prefix="kvtune-serve-"))
    logs.mkdir(parents=True, exist_ok=True)
    order: list[int | None] = [line.unit]
    runs: list[Measured] = []

    async def run_all() -> None:
        while len(runs) < len(order):
            unit = order[len(runs)]
            log = logs / f"{len(runs) + 1:02}-{unit_name(unit)}.log"
            async with _serving(subject, line, unit, log, options, listener) as (client, facts):
                if not runs:
                    candidates = distinct_units(facts.config, [line.unit, *choose(facts.config)])
                    order[:] = palindromic(candidates, options.runs)
                last = unit not in order[len(runs) + 1 :]
                runs.append(await measurement.measure(client, facts, fresh=True, rates=last))

    interrupted = _run_until_interrupted(run_all, runs)
    return _result(
        order[: len(runs)],
        runs,
        options,
        interrupted=interrupted,
        trace_requests=len(subject.trace),
        device=f"{line.words[0]} on this machine",
        logs=logs,
    )


def validate_endpoint(
    subject: Subject, url: str, choose: ChooseUnits, options: LiveOptions, listener: Listener
) -> LiveResult:
    """Replay against a server that is running, with the unit that it has; `choose` only learns what it resolved.

    Raises: as `validate_by_serving`.
    """
    measurement = Measurement(subject, options, listener)
    runs: list[Measured] = []

    async def run_all() -> None:
        async with LiveClient(url, api_key=options.api_key) as client:
            facts = await read_facts(client, subject.sources, None)
            _tell_warnings(facts.warnings, listener)
            choose(facts.config)
            while len(runs) < options.runs:
                last = len(runs) + 1 == options.runs
                runs.append(await measurement.measure(client, facts, fresh=False, rates=last))

    interrupted = _run_until_interrupted(run_all, runs)
    return _result(
        [run.config.match_unit for run in runs],
        runs,
        options,
        interrupted=interrupted,
        trace_requests=len(subject.trace),
        device="a running server",
    )


def measure_steps(
    subject: Subject,
    line: ServeLine | None,
    url: str | None,
    choose: ChooseUnits,
    options: LiveOptions,
    listener: Listener,
) -> FittedStepCost:
    """Measure step times on a server that is started for it, or on one that is running.

    Raises: as `validate_by_serving`.
    """

    async def on(client: LiveClient, facts: ServerFacts) -> FittedStepCost:
        choose(facts.config)
        await check_quiet(client, facts.release, options, listener)
        listener.note(
            f"measuring step times: at most {MOST_REQUESTS} prompts of random tokens, one to three minutes"
        )
        measurement = StepTimesMeasurement(
            client, facts.model, facts.config, vocabulary_of(subject.trace), listener
        )
        return await measurement.measure(f"vLLM {facts.version}, {facts.model}")

    async def run() -> FittedStepCost:
        if line is None:
            async with LiveClient(url or "", api_key=options.api_key) as client:
                facts = await read_facts(client, subject.sources, None)
                _tell_warnings(facts.warnings, listener)
                return await on(client, facts)
        logs = options.log_dir or Path(tempfile.mkdtemp(prefix="kvtune-serve-"))
        logs.mkdir(parents=True, exist_ok=True)
        log = logs / "01-step-times.log"
        async with _serving(subject, line, line.unit, log, options, listener) as (client, facts):
            return await on(client, facts)

    return asyncio.run(run())


def steps_validation(fitted: FittedStepCost) -> Validation:
    """A validation that holds step times alone."""
    return Validation(
        rung=RUNG,
        device=fitted.device,
        clock="wall",
        order="",
        runs=1,
        candidates=(),
        agrees=True,
        notes=(fitted.sentence(),),
        step_cost=fitted,
    )


def _run_until_interrupted(run_all: Callable[[], Coroutine[None, None, None]], runs: list[Measured]) -> bool:
    """Run to the end, or to Ctrl-C once there is something to show; says whether it was that."""
    try:
        asyncio.run(run_all())
    except KeyboardInterrupt:
        if not runs:
            raise
        return True
    return False


@asynccontextmanager
async def _serving(
    subject: Subject, line: ServeLine, unit: int | None, log: Path, options: LiveOptions, listener: Listener
) -> AsyncIterator[tuple[LiveClient, ServerFacts]]:
    """One start, ready and asked what it resolved; gone when the block ends."""
    with started(line, unit, log) as server:
        listener.note(server.shown)
        async with LiveClient(server.url, api_key=line.api_key(os.environ)) as client:
            await server.wait_until_ready(client, options.ready_timeout_s, listener.log_line)
            facts = await read_facts(client, subject.sources, log)
            _tell_warnings(facts.warnings, listener)
            if facts.config.match_unit != unit:
                raise MissingDependencyError(
                    "the server runs with another match unit than it was started with",
                    where=str(log),
                    found=unit_name(facts.config.match_unit),
                    wanted=unit_name(unit),
                    way_out="name the server's own command with --serve, not one that keeps flags to itself",
                )
            try:
                yield client, facts
            except MissingDependencyError:
                await asyncio.sleep(_DYING_S)
                server.check_alive()  # a dead server is the better explanation
                raise


def _tell_warnings(warnings: Sequence[str], listener: Listener) -> None:
    for text in dict.fromkeys(warnings):
        listener.note(text)


def _result(
    order: Sequence[int | None],
    runs: Sequence[Measured],
    options: LiveOptions,
    *,
    interrupted: bool,
    trace_requests: int,
    device: str,
    logs: Path | None = None,
) -> LiveResult:
    by_unit: dict[int | None, list[Measured]] = {}
    for unit, run in zip(order, runs, strict=True):
        by_unit.setdefault(unit, []).append(run)
    differences: list[str] = []
    for unit, group in by_unit.items():
        found = [text for run in group for text in _differences(run, unit_name(unit))]
        differences += dict.fromkeys(found)
    agrees = all(run.agrees for run in runs)
    version = runs[0].facts.version
    notes = list(dict.fromkeys(text for run in runs for text in run.facts.warnings))
    if options.slo and options.arrivals != "trace":
        notes.append("the largest load that meets the objectives is only looked for with --arrivals trace")
    searches = [run.search for run in runs if run.search is not None]
    validation = Validation(
        rung=RUNG,
        device=f"vLLM {version}, {device}",
        clock="wall",
        order=" ".join(unit_name(unit) for unit in order),
        runs=options.runs,
        slo=dict(options.slo) or None,
        candidates=candidate_rows(list(by_unit.values()), options.slo),
        agrees=agrees,
        differences=tuple(differences),
        requests=runs[0].comparison.requests,
        trace_requests=trace_requests,
        notes=tuple(notes),
        rate_search=how_executed(complete=all(complete for _, complete in searches)) if searches else None,
    )
    return LiveResult(validation, _verdict(version, runs, agrees), tuple(runs), logs, interrupted)


def _differences(run: Measured, name: str) -> list[str]:
    found = []
    if run.tokens is not None:
        found.append(run.tokens.sentence())
    if not run.comparison.exact:
        found.append(sentence(run.comparison, f"unit {name}"))
    found += [f"unit {name}: {text}" for text in run.problems]
    if run.run.refused:
        index, why = run.run.refused[0]
        found.append(
            f"unit {name}: {len(run.run.refused):,} requests were refused, the first in place {index + 1} ({why})"
        )
    return found


def _verdict(version: str, runs: Sequence[Measured], agrees: bool) -> str:
    requests = sum(run.comparison.requests for run in runs)
    equal = sum(run.comparison.equal for run in runs)
    figures = f"{equal:,} of {requests:,} requests hit exactly what was predicted"
    if agrees and equal == requests:
        return f"this server does what the profile of vLLM {version} says: {figures}"
    if agrees:
        return f"nothing speaks against the profile of vLLM {version}: {figures}, and no hit is impossible"
    if any(run.tokens is not None for run in runs):
        return f"this server makes other tokens of the same chats; with its own tokens, {figures}"
    if equal == requests:
        return f"{figures}, as the profile of vLLM {version} says, but the run is no evidence: see the differences"
    return f"this server does not do what the profile of vLLM {version} says: {figures}"
