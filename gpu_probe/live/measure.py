"""One run against a ready server: canary, counters before and after, the requests, and what all of it says.

Knows the order of these; where the server comes from is for `validate`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvtune.analyzers.layout import EngineConfig
from kvtune.gpu_probe.live.canary import Canary, Probe, vocabulary_of
from kvtune.gpu_probe.live.chat import TokenDifference, first_difference, server_tokens, with_tokens
from kvtune.gpu_probe.live.client import LiveClient
from kvtune.gpu_probe.live.counters import Counters, Expected, broken_identities
from kvtune.gpu_probe.live.facts import ServerFacts, read_page
from kvtune.gpu_probe.live.isolation import check_quiet, set_apart
from kvtune.gpu_probe.live.load import Run, send_by_time, send_in_turn
from kvtune.gpu_probe.live.options import Listener, LiveOptions, Subject
from kvtune.gpu_probe.live.prediction import Prediction, Predictor, without
from kvtune.gpu_probe.live.rates import find_largest_rate
from kvtune.gpu_probe.live.requests import Bodies, ChatBodies, Sampling, TokenBodies
from kvtune.gpu_probe.live.verdict import Comparison, compare, effective_unit, unit_name
from kvtune.gpu_probe.rate_search import RateSearch
from kvtune.tokenization.errors import MissingDependencyError, UnusableInputError
from kvtune.tokenization.trace import Int64, TokenTrace, UInt32

SETTLE_S = 5.0
"""The engine counts a request a moment after its last event."""


@dataclass(frozen=True)
class Measured:
    """One run of one candidate.

    Attributes:
        trace: the compared requests: those that the server took, with the ids that it saw. N of them.
        config: what the server resolved. probe: what the canary hit.
        hits: int64[N], measured.
        counters: the difference over the run.
        problems: identities that do not hold and the like, each a sentence.
        tokens: the first token on which server and trace differ (`as_chat`).
        search: of the largest rate that meets the objectives, and whether it came to its end; None where it was not
            looked for in this run.
    """

    trace: TokenTrace
    facts: ServerFacts
    probe: Probe
    run: Run
    counters: Counters
    prediction: Prediction
    hits: Int64
    comparison: Comparison
    problems: tuple[str, ...]
    tokens: TokenDifference | None = None
    search: tuple[RateSearch, bool] | None = None

    @property
    def config(self) -> EngineConfig:
        return self.facts.config

    @property
    def agrees(self) -> bool:
        return not self.problems and self.tokens is None and self.comparison.agrees


class Measurement:
    """Measures candidates one after another; predictions are kept between them."""

    def __init__(self, subject: Subject, options: LiveOptions, listener: Listener) -> None:
        if options.outputs == "recorded":
            raise UnusableInputError(
                "a server writes its own answers, it cannot be made to repeat recorded ones",
                field="--outputs",
                found="recorded",
                wanted="none or length",
            )
        if options.arrivals == "trace" and np.isnan(subject.trace.arrival).any():
            raise UnusableInputError(
                "the trace has requests without a time", field="--arrivals", found="trace"
            )
        if options.as_chat and subject.requests is None:
            raise UnusableInputError("the trace holds no chats", field="--as-chat")
        self._subject = subject
        self._options = options
        self._listener = listener
        self._predictors: dict[tuple[int, ...], Predictor] = {}
        self._predictor(subject.trace, ())  # refuses what the trace does not hold before anything is started
        self._output_tokens = self._wanted_outputs()

    async def measure(
        self, client: LiveClient, facts: ServerFacts, *, fresh: bool, rates: bool = False
    ) -> Measured:
        """Run all requests once.

        Args:
            fresh: the server has just started, so that its cache is empty by construction.
            rates: look for the largest rate that meets the objectives as well, if there are any.

        Raises:
            MissingDependencyError: the server fails, its cache cannot be emptied, or others are using it.
        """
        await check_quiet(client, facts.release, self._options, self._listener)
        canary = Canary(client, facts.model, facts.config, vocabulary_of(self._subject.trace))
        probe = await canary.probe()
        salt = None if fresh else await set_apart(client, canary, probe, self._listener)
        before = await read_page(client, facts.release)
        run = await self._send(client, facts, salt)
        counters = await _settled(client, facts, before, run.expected())
        theirs = await self._server_tokens(client, facts.model, run) if self._options.as_chat else None
        measured = self._judge(facts, probe, run, counters, theirs)
        arrival = self._subject.trace.arrival
        timed = self._options.arrivals == "trace" and arrival[-1] > arrival[0]
        if not (rates and self._options.slo and timed):
            return measured
        muted = replace(self._listener, note=_unheard)

        async def send(rate: float) -> Run:
            apart = await set_apart(client, canary, probe, muted)
            return await self._send(client, facts, apart, rate)

        search = await find_largest_rate(run, send, self._options.slo, self._listener.note)
        return replace(measured, search=search)

    def _judge(
        self,
        facts: ServerFacts,
        probe: Probe,
        run: Run,
        counters: Counters,
        theirs: Sequence[UInt32 | None] | None,
    ) -> Measured:
        trace = self._subject.trace
        tokens = first_difference(trace, theirs) if theirs is not None else None
        refused = tuple(sorted(index for index, _ in run.refused))
        kept = [index for index in range(len(trace)) if index not in set(refused)]
        if tokens is not None and theirs is not None:
            predictor = self._predictor(without(with_tokens(trace, theirs), refused), None)
        else:
            predictor = self._predictor(without(trace, refused), refused)
        prediction = predictor.predict(facts.config)
        hits = run.cached_tokens()[kept]
        problems = list(_problems(facts, probe, run, counters))
        comparison = compare(
            predictor, facts.config, prediction, hits, timing_decides=self._options.arrivals == "trace"
        )
        return Measured(
            predictor.trace,
            facts,
            probe,
            run,
            counters,
            prediction,
            hits,
            comparison,
            tuple(problems),
            tokens,
        )

    async def _send(self, client: LiveClient, facts: ServerFacts, salt: str | None, rate: float = 1.0) -> Run:
        bodies = self._bodies(Sampling(facts.model, salt))
        name = unit_name(facts.config.match_unit) + (f" at {rate:.3g} times the rate" if rate != 1 else "")

        def progress(done: int, total: int) -> None:
            self._listener.progress(name, done, total)

        if self._options.arrivals == "trace":
            return await send_by_time(client, bodies, self._subject.trace.arrival / rate, progress)
        return await send_in_turn(client, bodies, progress)

    def _bodies(self, sampling: Sampling) -> Bodies:
        trace, requests = self._subject.trace, self._subject.requests
        if self._options.as_chat and requests is not None:
            return ChatBodies(requests, trace, self._output_tokens, sampling)
        return TokenBodies(trace, self._output_tokens, sampling)

    async def _server_tokens(self, client: LiveClient, model: str, run: Run) -> list[UInt32 | None]:
        """The ids that the server made of each chat: returned with the answer, else asked for."""
        theirs: list[UInt32 | None] = []
        for request, answer in zip(self._subject.requests or (), run.answers, strict=True):
            if answer is None:
                theirs.append(None)
            elif answer.prompt_ids is not None:
                theirs.append(answer.prompt_ids)
            else:
                theirs.append(await server_tokens(client, model, request))
        if all(ids is None for ids in theirs):
            raise MissingDependencyError(
                "the server neither returns nor tells its token ids",
                where=str(client.base),
                wanted="return_token_ids or /tokenize",
                way_out="leave --as-chat out to send token ids",
            )
        return theirs

    def _predictor(self, trace: TokenTrace, key: tuple[int, ...] | None) -> Predictor:
        found = self._predictors.get(key) if key is not None else None
        if found is None:
            found = Predictor(
                trace,
                outputs=self._options.outputs,
                arrivals=self._options.arrivals,
                step_times=self._options.step_times,
            )
            if key is not None:
                self._predictors[key] = found
        return found

    def _wanted_outputs(self) -> Int64:
        trace = self._subject.trace
        if self._options.outputs == "length" and trace.output_tokens is not None:
            return np.maximum(trace.output_tokens, 1)
        return np.ones(len(trace), dtype=np.int64)


def _unheard(text: str) -> None:
    """Every trial sets the cache apart in the same words as the run before."""


def _problems(facts: ServerFacts, probe: Probe, run: Run, counters: Counters) -> list[str]:
    found = []
    grid = effective_unit(facts.config)
    if facts.coarse_managers is not None and grid == facts.config.match_unit:
        found.append(f"the server's log says that hits inside a block are off: {facts.coarse_managers}")
    if probe.hit != probe.expected:
        found.append(
            f"the probe prompt ({probe.length:,} random tokens, sent twice) hit {probe.hit:,} tokens, expected "
            f"{probe.expected:,}: hits land on multiples of {probe.grid or 'nothing'}, not of {grid}"
        )
    if run.void:
        found.append(
            f"the run is void: {run.late:,} of {len(run.answers):,} requests left late, so that this client was "
            "measured too"
        )
    return found + list(broken_identities(counters, run.expected(), facts.release))


async def _settled(client: LiveClient, facts: ServerFacts, before: Counters, expected: Expected) -> Counters:
    deadline = asyncio.get_running_loop().time() + SETTLE_S
    while True:
        delta = (await read_page(client, facts.release)).since(before)
        if delta.requests >= expected.requests or asyncio.get_running_loop().time() > deadline:
            return delta
        await asyncio.sleep(0.1)
