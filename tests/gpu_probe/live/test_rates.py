"""The largest load of a server: trials against a server on loopback, and what ends a search before its time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from kvtune.analyzers.layout import parse_groups
from kvtune.analyzers.sizing.sources import SizeSources
from kvtune.gpu_probe.live import isolation, load, rates
from kvtune.gpu_probe.live.answer import Answer
from kvtune.gpu_probe.live.load import Run
from kvtune.gpu_probe.live.options import Listener, LiveOptions, Subject
from kvtune.gpu_probe.live.prediction import trace_of
from kvtune.gpu_probe.live.rates import find_largest_rate, is_met
from kvtune.gpu_probe.live.validate import validate_endpoint
from kvtune.tokenization.errors import MissingDependencyError
from tests.gpu_probe.live.scripted_server import GROUPS_SPEC, Script, running


def run_of(ttft: list[float | None], *, late: int = 0) -> Run:
    """A run whose requests were sent at 0 and got their only token at these times; None: refused."""
    answers = [
        None if time is None else Answer(sent=0.0, events=[time], finished=time, completion_tokens=1)
        for time in ttft
    ]
    return Run(answers, late=late, wall_s=1.0)  # type: ignore[arg-type]


def test_refused_requests_are_misses() -> None:
    slo = {"ttft": 0.5}
    assert is_met(run_of([0.1] * 20), slo)
    assert is_met(run_of([0.1] * 19 + [0.9]), slo)  # 95% exactly
    assert is_met(run_of([0.1] * 19 + [None]), slo)
    assert not is_met(run_of([0.1] * 18 + [0.9, None]), slo)


def searched(trials: dict[float, Run | Exception], own: Run | None = None):
    """The outcome of a search whose trials end so, the rates that were tried, and what was noted."""
    sent, notes = [], []

    async def send(rate: float) -> Run:
        sent.append(rate)
        outcome = trials[rate]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    search, complete = asyncio.run(find_largest_rate(own or run_of([0.1]), send, {"ttft": 0.5}, notes.append))
    return search, complete, sent, notes


def test_the_own_run_is_the_first_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    good = run_of([0.1])
    search, complete, sent, _ = searched({2.0: good, 8.0: good, 64.0: good})
    assert (search.met, search.missed, complete, sent) == (64.0, None, True, [2.0, 8.0, 64.0])
    search, complete, sent, _ = searched({}, own=run_of([0.9]))
    assert (search.met, search.missed, complete, sent) == (0.0, 1.0, True, [])
    monkeypatch.setattr(rates, "BUDGET_S", -2.0)
    search, complete, sent, _ = searched({})
    assert (search.met, search.missed, complete, sent) == (1.0, None, False, [])


def test_what_cannot_be_sent_says_nothing() -> None:
    search, complete, _, notes = searched({2.0: run_of([0.1] * 10, late=5)})
    assert (search.met, search.missed, complete) == (1.0, None, False)
    assert notes == ["this client cannot send 2 times as fast as the trace: no larger load was tried"]
    search, complete, _, _ = searched({}, own=run_of([0.1] * 10, late=5))
    assert (search.runs, complete) == (0, False)


def test_a_server_that_fails_under_load_keeps_what_was_found() -> None:
    search, complete, _, notes = searched(
        {2.0: run_of([0.1]), 8.0: MissingDependencyError("the server is gone")}
    )
    assert (search.met, search.missed, complete) == (2.0, None, False)
    assert notes == ["no larger load was tried than 8 times the trace's: the server is gone"]


@pytest.mark.parametrize("arrivals", ["trace", "sequential"])
def test_a_running_server_is_asked_for_its_largest_load(
    arrivals: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "QUIET_S", 0.05)
    monkeypatch.setattr(load, "LATE_S", 10.0)  # on a busy machine this client would be measured too
    random = np.random.default_rng(3)
    prompts = trace_of([random.integers(1, 5_000, 80) for _ in range(4)])
    trace = replace(prompts, arrival=np.array([0.0, 0.05, 0.1, 0.15]))
    with running(Script()) as server:
        found = validate_endpoint(
            Subject(trace, SizeSources(groups=parse_groups(GROUPS_SPEC))),
            server.url,
            lambda config: (),
            LiveOptions(runs=2, arrivals=arrivals, slo={"ttft": 30.0}),  # type: ignore[arg-type]
            Listener(note=lambda text: None, log_line=lambda text: None, progress=lambda *at: None),
        ).validation
    row = found.candidates[0]
    if arrivals == "trace":
        assert found.rate_search is not None
        assert found.rate_search.method == "executed"
        assert row.largest_rate is not None
        assert row.largest_rate >= 1.0
        assert row.missed_rate is None
    else:
        assert (found.rate_search, row.largest_rate) == (None, None)
        assert (
            "the largest load that meets the objectives is only looked for with --arrivals trace"
            in found.notes
        )
