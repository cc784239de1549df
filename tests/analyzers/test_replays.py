"""Many replays at once give what each gives alone, whoever does them and whatever happens to the workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import fields, replace

import numpy as np
import pytest

from kvtune.analyzers import replays
from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.refusal import EngineRefusal
from kvtune.analyzers.replay import ReplayResult
from kvtune.analyzers.replays import Replays, ReplayTask
from kvtune.tokenization.workers import standby
from tests.analyzers.structures import load_structure

ENGINE = EngineConfig(groups=parse_groups("mamba:528*3,full:528"), num_blocks=300)
SETTINGS = [replace(ENGINE, match_unit=unit) for unit in (None, 16, 48, 88, 176, 264)]


@pytest.fixture(scope="module")
def task() -> ReplayTask:
    prompts, _ = load_structure("bfcl")
    return ReplayTask(prompts, replica=(np.arange(len(prompts.paths)) % 2).astype(np.int32))


@pytest.fixture(scope="module")
def alone(task: ReplayTask) -> list[ReplayResult]:
    return [task.run(setting) for setting in SETTINGS]


@pytest.fixture(autouse=True)
def any_work_is_worth_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "_WORTH_A_WORKER_S", 0.0)


def assert_same(found: list[ReplayResult], wanted: list[ReplayResult]) -> None:
    for one, other in zip(found, wanted, strict=True):
        for field in fields(ReplayResult):
            np.testing.assert_equal(getattr(one, field.name), getattr(other, field.name), field.name)


def results(pending: Replays) -> list[ReplayResult]:
    told: list[int] = []
    found = pending.results(lambda done, _total: told.append(done))
    assert told == sorted(told)
    assert told[-1] == len(SETTINGS)
    return found


@pytest.mark.parametrize("workers", [1, 3])
def test_results_stand_in_the_order_of_the_settings(task, alone, workers):
    with Replays(SETTINGS, task, workers=workers) as pending:
        children = multiprocessing.active_children()
        assert len(children) == workers - 1
        assert_same(results(pending), alone)
    assert not multiprocessing.active_children()


def test_workers_take_part(task, alone):
    with Replays(SETTINGS, task, workers=2) as pending:
        place, found = pending._answers.get(timeout=60)
        assert found is not None
        assert_same([found], [alone[place]])


def test_a_worker_that_dies_is_done_without(task, alone):
    with Replays(SETTINGS, task, workers=3) as pending:
        for child in multiprocessing.active_children():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
        assert_same(results(pending), alone)


def test_an_interrupt_ends_a_worker_that_is_still_beginning_without_a_word(task, alone, capfd):
    with Replays(SETTINGS, task, workers=2) as pending:
        (child,) = multiprocessing.active_children()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGINT)
        assert_same(results(pending), alone)
        child.join(timeout=60)
        assert child.exitcode == -signal.SIGINT
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert capfd.readouterr().err == ""


def test_little_work_needs_no_workers(task, monkeypatch):
    monkeypatch.setattr(replays, "_WORTH_A_WORKER_S", 1000.0)
    with Replays(SETTINGS, task, workers=8):
        assert not multiprocessing.active_children()


def test_workers_that_stand_by_are_taken(task, alone, monkeypatch):
    monkeypatch.setattr(replays, "_WORTH_A_WORKER_S", 1000.0)
    with standby(2, ("kvtune.analyzers.replays",)):
        children = multiprocessing.active_children()
        with Replays(SETTINGS, task, workers=2) as pending:
            place, found = pending._answers.get(timeout=60)
            assert found is not None
            assert_same([found], [alone[place]])
        assert len(multiprocessing.active_children()) == len(children) - 1 == 1
    assert not multiprocessing.active_children()


def test_what_the_engine_refuses_is_said_here(task, capfd):
    refused = [*SETTINGS[:2], replace(ENGINE, match_unit=5)]
    with pytest.raises(EngineRefusal), Replays(refused, task, workers=2) as pending:
        pending.results(lambda _done, _total: None)
    assert not multiprocessing.active_children()
    assert capfd.readouterr().err == ""
