"""Replays by timestamps: what is there in time, worked out by hand with a step of one second."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from kvtune.analyzers.bookkeeping.scheduler import make_scheduler
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.bookkeeping.step_plan import Chunk, StepPlan
from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.losses import losses_by_request
from kvtune.analyzers.profiles import NEWEST
from kvtune.analyzers.replay import ReplayResult, replay
from kvtune.analyzers.shared import find_shared_prefixes
from kvtune.analyzers.step_times import ASSUMED, LinearStepTimes, StepShape
from kvtune.analyzers.sweep import replay_input
from kvtune.tokenization.errors import UnusableInputError
from tests.analyzers.bookkeeping.drive import inputs_of, sequences_of
from tests.analyzers.structures import load_structure
from tests.analyzers.traces import trace_of

SECOND_A_STEP = LinearStepTimes((1.0, 0.0, 0.0, 0.0, 0.0, 0.0))


def stream(number: int, length: int) -> list[int]:
    return [number * 1000 + place for place in range(length)]


def timed(
    prompts: list[list[int]], arrival: list[float], outputs: list[int], **settings: object
) -> ReplayResult:
    inputs, _ = inputs_of(prompts, outputs)
    config = EngineConfig(groups=parse_groups("full:4"), **settings)  # type: ignore[arg-type]
    return replay(
        config,
        replace(inputs, arrival=np.array(arrival)),
        arrivals="trace",
        step_times=SECOND_A_STEP,
        check=True,
    )


def test_one_request_takes_a_step_to_prefill_and_one_per_further_token() -> None:
    result = timed([stream(1, 10)], [5.0], [3])
    assert (result.first_token_s, result.finished_s) == ([6.0], [8.0])
    assert result.num_steps == 3


@pytest.mark.parametrize(("scheduling", "first_token"), [("sync", 3.0), ("async", 4.0)])
def test_an_arrival_in_a_step_waits_for_the_next_plan(
    scheduling: Literal["sync", "async"], first_token: float
) -> None:
    """The second request comes at 1.5, inside the step from 1 to 2. Sync: planned at 2, done at 3. Async: the step
    from 2 to 3 was planned at 1, so the newcomer is in the one from 3 to 4."""
    result = timed([stream(1, 10), stream(2, 10)], [0.0, 1.5], [9, 1], scheduling=scheduling)
    assert result.first_token_s is not None
    assert result.first_token_s.tolist() == [1.0, first_token]


def test_a_pool_for_one_makes_the_second_wait() -> None:
    """8 usable blocks; each request needs 5 for its prompt of 18, so the second starts when the first is done."""
    result = timed([stream(1, 18), stream(2, 18)], [0.0, 0.0], [2, 1], num_blocks=9)
    assert result.finished_s is not None
    assert result.finished_s.tolist() == [2.0, 3.0]


def test_a_prompt_that_never_fits_is_refused_in_its_turn() -> None:
    result = timed([stream(1, 18), stream(2, 90), stream(1, 18)], [0.0, 0.0, 0.0], [1, 1, 1], num_blocks=9)
    assert result.refused == (1,)
    assert result.hit_tokens.tolist() == [0, 0, 16]
    assert result.first_token_s is not None
    assert np.isnan(result.first_token_s).tolist() == [False, True, False]


def test_what_was_not_computed_yet_is_lost_in_flight() -> None:
    """Budget 16: the first prompt fills the first step, then 8 tokens of each step. Its twin comes in the first step
    and, in the second, finds the 24 tokens keyed by then; the other 16 are only computed later."""
    twins = [stream(1, 41), stream(1, 41)]
    inputs, shared = inputs_of(twins, [1, 1])
    timed_inputs = replace(inputs, arrival=np.array([0.0, 0.001]))
    config = EngineConfig(
        groups=parse_groups("full:4"), max_num_batched_tokens=16, long_prefill_token_threshold=8
    )
    result = replay(config, timed_inputs, arrivals="trace")
    losses = losses_by_request(config, timed_inputs, None, shared, "trace")
    assert result.hit_tokens.tolist() == [0, 24]
    assert {name: int(loss[1]) for name, loss in losses.items() if loss[1]} == {"in_flight": 16}


def test_timestamps_are_needed() -> None:
    inputs, _ = inputs_of([stream(1, 9)])
    with pytest.raises(UnusableInputError, match="timestamp"):
        replay(EngineConfig(groups=parse_groups("full:4")), inputs, arrivals="trace")


def test_far_apart_arrivals_are_a_sequential_replay() -> None:
    inputs, _ = load_structure("miniswe")
    config = EngineConfig(groups=parse_groups("mamba:528*3,full:528"), match_unit=48, num_blocks=400)
    apart = replace(inputs, arrival=np.arange(len(inputs.paths)) * 1e4)
    one_by_one, by_time = replay(config, inputs), replay(config, apart, arrivals="trace")
    for name in ("hit_tokens", "prefill_steps", "copies", "evicted_blocks", "new_blocks", "junction"):
        np.testing.assert_array_equal(getattr(one_by_one, name), getattr(by_time, name))


class TestStepTimes:
    def test_parts(self) -> None:
        """Prefill of positions 4 to 6 attends 5 + 6 + 7 pairs; a decode at 20 reads 20 positions."""
        [prefill, decode] = sequences_of_lengths(10, 12)
        plan = StepPlan([Chunk(prefill, 4, 3), Chunk(decode, 20, 1)], [], [])
        model = LinearStepTimes((1.0, 10.0, 100.0, 1000.0, 1e4, 1e6))
        assert (
            model.step_s(StepShape.of(plan.chunks)) == 1.0 + 3 * 10.0 + 18 * 100.0 + 1000.0 + 20 * 1e4 + 1e6
        )
        assert model.step_s(StepShape.of([])) == 0.0

    def test_a_run_of_decode_steps_is_the_sum_of_them(self) -> None:
        model = ASSUMED
        single = [model.decode_s(1, 3, 60 + 3 * step) for step in range(5)]
        assert model.decode_s(5, 3, 60) == pytest.approx(sum(single), rel=1e-12)


def sequences_of_lengths(*lengths: int) -> list[Sequence]:
    scheduler = make_scheduler(EngineConfig(groups=parse_groups("full:4")), NEWEST)
    return sequences_of(scheduler, [stream(number, length) for number, length in enumerate(lengths)])


def test_prefill_beside_decode_adds_what_the_step_takes_longer() -> None:
    """A second a step and a tenth a prompt token. The first request decodes while the second is prefilled: its 3 tokens
    add 0.3 s; the first one's own step, with nothing beside it, is wholly its own."""
    trace = replace(
        trace_of([[1, 2, 3, 4], [5, 6, 7]], arrival=np.array([0.0, 5.0])),
        output_tokens=np.array([40, 1], dtype=np.int64),
    )
    inputs = replay_input(trace, find_shared_prefixes(trace, "length"))
    times = LinearStepTimes((1.0, 0.1, 0.0, 0.0, 0.0, 0.0))
    result = replay(EngineConfig(groups=parse_groups("full:4")), inputs, arrivals="trace", step_times=times)
    assert result.added_prefill_s is not None
    np.testing.assert_allclose(result.added_prefill_s, [1.4, 0.3])
    assert result.busy_s == pytest.approx(40 + 0.4 + 0.3)
