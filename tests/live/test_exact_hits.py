"""Every request of real traces hits on a real vLLM what the bookkeeping of its release predicts."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from kvtune.gpu_probe.live.client import LiveClient
from kvtune.gpu_probe.live.facts import ServerFacts, read_facts
from kvtune.gpu_probe.live.measure import Measured
from kvtune.gpu_probe.live.options import LiveOptions, Subject
from kvtune.gpu_probe.live.validate import LiveResult, validate_endpoint
from kvtune.tokenization.errors import MissingDependencyError
from kvtune.tokenization.trace import TokenTrace
from tests.live import traces
from tests.live.conftest import API_KEY, QUIET, RealServer
from tests.live.served_model import BLOCK

pytestmark = pytest.mark.parametrize(
    "server",
    [16, *(pytest.param(unit, marks=pytest.mark.thorough) for unit in (None, 32, 128))],
    indirect=True,
    ids=["16", "unset", "32", "128"],
)


def validate(server: RealServer, trace: TokenTrace, **options: object) -> LiveResult:
    requests = options.pop("requests", None)
    return validate_endpoint(
        Subject(trace, server.sources, requests),  # type: ignore[arg-type]
        server.url,
        lambda config: (),
        LiveOptions(runs=1, api_key=API_KEY, **options),  # type: ignore[arg-type]
        QUIET,
    )


def check_every_request(result: LiveResult) -> Measured:
    (run,) = result.runs
    assert run.hits.tolist() == run.prediction.hits.tolist()
    assert run.problems == ()
    assert result.validation.agrees
    assert result.validation.differences == ()
    return run


def test_a_server_that_wants_a_key_is_not_measured_without_it(server: RealServer) -> None:
    with pytest.raises(MissingDependencyError, match="wants another API key"):
        validate_endpoint(
            Subject(traces.worked_by_hand(), server.sources),
            server.url,
            lambda config: (),
            LiveOptions(),
            QUIET,
        )


def test_sizes_are_read_from_its_log(server: RealServer) -> None:
    async def ask() -> ServerFacts:
        async with LiveClient(server.url, api_key=API_KEY) as client:
            return await read_facts(client, server.sources, server.log)

    facts = asyncio.run(ask())
    assert facts.version == "0.32.0"
    assert [(group.kind, group.block_size) for group in facts.config.expanded()] == [
        *[("mamba", BLOCK)] * 3,
        ("full", BLOCK),
    ]
    assert facts.config.match_unit == server.unit
    assert facts.config.max_num_batched_tokens == 2_048
    assert facts.coarse_managers is None


def test_a_sequence_worked_by_hand(server: RealServer) -> None:
    run = check_every_request(validate(server, traces.worked_by_hand()))
    assert run.hits.tolist() == traces.WORKED_BY_HAND[server.unit]


def test_the_canary_measures_the_unit(server: RealServer) -> None:
    run = check_every_request(validate(server, traces.worked_by_hand()))
    assert run.probe.grid == (server.unit or BLOCK)


def test_every_request_of_the_sample(server: RealServer, airline: traces.Chats) -> None:
    run = check_every_request(validate(server, airline.trace))
    assert len(run.hits) == len(airline.trace)
    assert run.hits.sum() > 0


def test_every_request_of_the_sample_sent_as_chats(server: RealServer, airline: traces.Chats) -> None:
    run = check_every_request(validate(server, airline.trace, requests=airline.requests, as_chat=True))
    assert run.tokens is None
    assert run.run.prompt_tokens().tolist() == airline.trace.prompt_tokens.tolist()


def test_every_request_of_a_coding_assistant(server: RealServer) -> None:
    trace = traces.miniswe()
    run = check_every_request(validate(server, trace))
    assert len(run.hits) == 200
    if server.unit == 16:
        assert run.hits[:8].tolist() == [0, 1328, 1488, 1648, 1824, 1984, 0, 1488]
    counted = run.counters
    assert (
        counted.computed_tokens + counted.hit_tokens
        == counted.prompt_tokens
        == int(trace.prompt_tokens.sum())
    )
    assert counted.hit_tokens == int(np.maximum(run.hits, 0).sum())
