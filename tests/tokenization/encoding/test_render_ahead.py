"""Chats that workers render give the trace that they give here, whatever happens to the workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtune.tokenization.encode import EncodeInfo
from kvtune.tokenization.encoding import render_ahead
from kvtune.tokenization.encoding.open_encoder import open_prompt_encoder
from kvtune.tokenization.encoding.render_ahead import RenderAhead
from kvtune.tokenization.request import Request
from kvtune.tokenization.trace import TokenTrace
from kvtune.tokenization.workers import Worker, standby, take_workers
from tests.tokenization.encoding.models import TOOL, chat, rejected_of, write_model

IMPORTS = ("kvtune.tokenization.encoding.open_encoder", "kvtune.tokenization.encoding.render_ahead")
TOO_MUCH = "{{ 'x' * 999999999 }}"
OPTIONS = {"trusts_requests": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """Conversations, and between them all that only this process may decide."""
    picture = {"type": "image_url", "image_url": {"url": "http://a/cat"}}
    nested: Any = "x"
    for _ in range(5000):
        nested = [nested]
    found: list[Request] = []
    for number in range(200):
        turns = [f"turn {turn} of {number // 10}" for turn in range(2 * (number % 10) + 1)]
        found.append(chat(*turns, tools=[TOOL] if number % 3 else None, arrival=float(number)))
    found[120:120] = [
        chat("hi", chat_template="{{ strftime_now('%H:%M') }}", arrival=3600.0),
        chat("hi", chat_template="{{ strftime_now('%H:%M') }}"),
        chat(messages=[{"role": "user", "content": [picture]}]),
        chat(messages=[{"content": "no role"}]),
        chat("hi", chat_template="{{ raise_exception('no') }}"),
        chat("", chat_template=" "),
        chat("hi", documents=[{"deep": nested}]),
        Request(id="t", text="a completion"),
        *(chat("hi", chat_template=f"{number}{TOO_MUCH}") for number in range(16)),
        chat("hi", chat_template="fine, but its account is closed"),
    ]
    return found


@contextmanager
def workers(count: int) -> Iterator[list[Worker]]:
    """Workers that have started."""
    with standby(count, IMPORTS):
        taken = take_workers()
        while not all(worker.is_up() for worker in taken):
            time.sleep(0.01)
        yield taken


def ahead_of(workers: list[Worker], model: Path) -> RenderAhead:
    return RenderAhead(workers, partial(open_prompt_encoder, model=model, renders_only=True, **OPTIONS))


def encoded(requests: list[Request], model: Path, **options: Any) -> tuple[TokenTrace, EncodeInfo, list[Any]]:
    trace, info, rejected = rejected_of(requests, open_prompt_encoder(model=model, **OPTIONS), **options)
    return trace, info, [(request.source, reason, str(error)) for request, reason, error in rejected]


def assert_same(
    one: tuple[TokenTrace, EncodeInfo, list[Any]], other: tuple[TokenTrace, EncodeInfo, list[Any]]
) -> None:
    assert one[1:] == other[1:]
    np.testing.assert_array_equal(one[0].tokens, other[0].tokens)
    np.testing.assert_array_equal(one[0].offsets, other[0].offsets)
    assert one[0].families == other[0].families
    assert parts(one[0]) == parts(other[0])


def parts(trace: TokenTrace) -> list[list[str]]:
    return [
        [trace.parts.part_of(index, position) for position in range(int(tokens))]
        for index, tokens in enumerate(trace.prompt_tokens.tolist())
    ]


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("backwards", [False, True])
def test_the_trace_is_the_same(requests, model, count, backwards, monkeypatch):
    monkeypatch.setattr(render_ahead, "_MOST_SENT", 20_000)
    monkeypatch.setattr(render_ahead, "_MOST_GIVEN", 5_000)
    with workers(count) as taken, ahead_of(taken, model) as ahead:
        for request in requests:
            ahead.offer(request)
        ordered = requests[::-1] if backwards else requests
        found = encoded(ordered, model, ahead=ahead)
    assert_same(found, encoded(ordered, model))
    # Backwards, the account of the requests' own templates is closed before the fine ones come.
    assert (found[1].rejected_by["template_refused"], found[1].untimed_dates) == (
        (21, 0) if backwards else (19, 1)
    )
    assert not multiprocessing.active_children()


def test_workers_take_part(requests, model):
    with workers(2) as taken, ahead_of(taken, model) as ahead:
        for request in requests:
            ahead.offer(request)
        rendered = []
        for request in requests:
            rendered.append(ahead.take(request))
            time.sleep(0.002)
        encoder = open_prompt_encoder(model=model, **OPTIONS)
        for request, found in zip(requests, rendered, strict=True):
            if found is not None:
                prompt = encoder.render(request)
                assert found == (prompt.text, prompt.tool_texts)
        assert sum(found is not None for found in rendered) > len(rendered) / 4
        assert ahead.take(requests[0]) is None, "each is given once"


def test_a_worker_that_dies_is_done_without(requests, model):
    with workers(2) as taken, ahead_of(taken, model) as ahead:
        for request in requests:
            ahead.offer(request)
        for child in multiprocessing.active_children():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
        found = encoded(requests, model, ahead=ahead)
    assert_same(found, encoded(requests, model))


def test_a_worker_that_is_still_starting_is_not_waited_for(requests, model):
    with standby(1, IMPORTS):
        (worker,) = take_workers()
        worker.is_up = lambda: False
        with ahead_of([worker], model) as ahead:
            for request in requests:
                ahead.offer(request)
            assert [ahead.take(request) for request in requests] == [None] * len(requests)


def test_workers_are_handed_back_for_the_next_task(requests, model):
    with workers(1) as taken:
        for _ in range(2):
            with ahead_of(taken, model) as ahead:
                for request in requests:
                    ahead.offer(request)
                ahead.take(requests[-1])
            assert take_workers() == taken
        taken[0].end()


def test_a_worker_that_may_be_answering_still_is_not(requests, model):
    with workers(1) as taken:
        with pytest.raises(KeyboardInterrupt), ahead_of(taken, model):
            raise KeyboardInterrupt
        assert not take_workers()
        assert not multiprocessing.active_children()
