"""The numbers beside the tensors: step costs, paired statistics, latencies, hashing, clocks."""

from __future__ import annotations

import hashlib
import math
import pickle

import numpy as np
import pytest

pytest.importorskip("torch")

from kvtune.analyzers.step_times import ASSUMED, LinearStepTimes, StepShape
from kvtune.analyzers.step_times.nonnegative import nonnegative_least_squares
from kvtune.gpu_probe.engine.clocks import ModelClock, VirtualClock
from kvtune.gpu_probe.engine.cost import (
    Timed,
    compose,
    fit_step_times,
)
from kvtune.gpu_probe.engine.hashing import FIRST_PARENT, HashChain
from kvtune.gpu_probe.engine.measure import qualifying, tpot, ttft
from kvtune.gpu_probe.engine.paired import holm, paired_effect, t_distribution, t_quantile
from kvtune.gpu_probe.engine.runner import RunRecord


def shapes(count, rng):
    return [
        StepShape(
            prefill_tokens=int(rng.integers(0, 2000)),
            prefill_requests=int(rng.integers(0, 4)),
            attended_pairs=int(rng.integers(0, 4_000_000)),
            decode_tokens=int(rng.integers(0, 64)),
            decode_context=int(rng.integers(0, 100_000)),
        )
        for _ in range(count)
    ]


TRUE = LinearStepTimes((2e-3, 3e-5, 2e-9, 1e-5, 0.0, 4e-4))


def test_step_costs_are_found_again():
    rng = np.random.default_rng(0)
    batches, held = shapes(40, rng), shapes(20, rng)
    fitted = fit_step_times(batches, list(map(TRUE.step_s, batches)), held, list(map(TRUE.step_s, held)))
    np.testing.assert_allclose(fitted.coefficients, TRUE.coefficients, rtol=1e-6, atol=1e-12)
    assert fitted.held_out == 20
    assert fitted.info.error.mean < 1e-9
    assert fitted.extrapolates
    assert fitted.step_overhead_tokens == pytest.approx((2e-3 + 4e-4) / 3e-5)


def test_the_error_is_that_of_batches_that_took_no_part():
    """Held-out times are 10% longer than the truth that was fitted: predictions are 1/1.1 of them, off by 1/11."""
    rng = np.random.default_rng(3)
    batches, held = shapes(40, rng), shapes(20, rng)
    longer = [1.1 * TRUE.step_s(shape) for shape in held]
    fitted = fit_step_times(batches, list(map(TRUE.step_s, batches)), held, longer)
    assert fitted.info.error.mean == pytest.approx(1 / 11)
    assert fitted.info.error.p90 == pytest.approx(1 / 11)
    assert fitted.extrapolates
    twice = fit_step_times(batches, list(map(TRUE.step_s, batches)), held, [2 * time for time in longer])
    assert twice.info.error.mean == pytest.approx(1 - 1 / 2.2)
    assert "above 10% or 20%" in twice.reason


def test_a_model_that_does_not_fit_refuses_to_extrapolate():
    rng = np.random.default_rng(1)
    batches = shapes(60, rng)
    times = rng.uniform(0.001, 1.0, 60).tolist()
    fitted = fit_step_times(batches[:40], times[:40], batches[40:], times[40:])
    assert fitted.info.error.mean > 0.1
    assert not fitted.extrapolates
    with pytest.raises(ValueError, match="twelve"):
        fit_step_times(batches[:5], [1.0] * 5, batches[5:], [1.0] * 55)
    with pytest.raises(ValueError, match="try it on"):
        fit_step_times(batches, [1.0] * 60, [], [])


def test_a_deep_model_is_composed_of_shallow_ones():
    """Two kinds of layer and a fixed part, worked by hand: 24 and 8 layers cost the fixed part and 24 and 8 parts."""
    rng = np.random.default_rng(4)
    fixed = np.array((1e-3, 2e-6, 0.0, 1e-5, 0.0, 5e-5))
    first = np.array((4e-4, 2e-5, 0.0, 8e-6, 0.0, 1e-4))
    second = np.array((3e-4, 1e-5, 3e-9, 2e-6, 2e-8, 5e-5))

    def timed(layers, count):
        cost = LinearStepTimes(tuple(fixed + layers[0] * first + layers[1] * second))
        batches = shapes(count, rng)
        return Timed(layers, batches, list(map(cost.step_s, batches)))

    fitted = compose([timed(layers, 30) for layers in ((2, 2), (4, 2), (2, 4))], timed((6, 6), 20), (24, 8))
    np.testing.assert_allclose(fitted.coefficients, fixed + 24 * first + 8 * second, rtol=1e-5, atol=1e-12)
    assert fitted.info.error.mean < 1e-6
    # Layers that cost more the more there are of them cannot be composed, and the deep model shows it.
    held = timed((6, 6), 20)
    slower = Timed(held.layers, held.shapes, [1.5 * time for time in held.seconds])
    assert not compose(
        [timed((2, 2), 30), timed((4, 2), 30), timed((2, 4), 30)], slower, (24, 8)
    ).extrapolates


def test_least_squares_stays_nonnegative_and_optimal():
    """Against the definition: no coordinate, moved up or (above zero) down, makes the residual smaller."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        matrix, target = rng.normal(size=(15, 5)), rng.normal(size=15)
        x = nonnegative_least_squares(matrix, target)
        assert (x >= 0).all()
        gradient = matrix.T @ (matrix @ x - target)
        assert (gradient >= -1e-8).all()
        assert abs(gradient @ x) < 1e-8


def test_the_nominal_step_costs_what_128_tokens_do():
    assert ASSUMED.step_overhead_tokens == pytest.approx(128)


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (2, 4.3027), (5, 2.5706), (10, 2.2281), (30, 2.0423), (1000, 1.9623)],
)
def test_t_quantiles_are_those_of_the_tables(freedom, quantile):
    assert t_quantile(0.975, freedom) == pytest.approx(quantile, abs=2e-4)
    assert t_distribution(quantile, freedom) == pytest.approx(0.975, abs=1e-5)
    assert t_distribution(-quantile, freedom) == pytest.approx(0.025, abs=1e-5)


def test_the_pair_of_runs_is_the_unit():
    """Two pairs, log ratios 0.1 and 0.2 in the mean: 0.15 +- 12.7062 * 0.05."""
    base = np.ones(1000)
    pairs = [(base, np.full(1000, math.exp(0.1))), (base, np.full(1000, math.exp(0.2)))]
    effect = paired_effect(pairs)
    assert effect.pairs == 2
    assert effect.change == pytest.approx(math.expm1(0.15))
    assert effect.low == pytest.approx(math.expm1(0.15 - 12.7062 * 0.05), rel=1e-4)
    assert effect.high == pytest.approx(math.expm1(0.15 + 12.7062 * 0.05), rel=1e-4)
    assert effect.p_value == pytest.approx(0.2048, abs=1e-3)  # t = 3 with one degree of freedom
    assert math.isinf(paired_effect(pairs[:1]).high)


def test_holm_steps_down():
    assert holm([0.01, 0.04, 0.03]) == [True, False, False]  # 0.01 < 0.05/3, then 0.03 > 0.05/2
    assert holm([0.01, 0.02, 0.04]) == [True, True, True]
    assert holm([]) == []


def record_of(times):
    """A record of requests that arrived at 0 and got tokens at the given times."""
    record = RunRecord.empty(len(times))
    record.arrival[:] = 0.0
    for index, moments in enumerate(times):
        record.token_times[index] = moments
        if moments:
            record.first_token[index], record.finished[index] = moments[0], moments[-1]
    return record


def test_latencies_by_hand():
    record = record_of([[1.0, 1.5, 2.0], [3.0], []])
    assert ttft(record)[:2].tolist() == [1.0, 3.0]
    assert tpot(record)[0] == 0.5
    assert np.isnan(tpot(record)[1:]).all()
    assert qualifying(record, {"ttft": 2.0}) == 1  # one that never finished does not qualify
    assert qualifying(record, {"ttft": 4.0, "tpot": 0.5}) == 2  # a single token has no TPOT to miss
    assert qualifying(record, {"ttft": 4.0, "tpot": 0.4}) == 1


def test_hash_chains_are_extended_and_never_recomputed():
    ids = np.arange(100, dtype=np.int64)
    whole, cut = HashChain(16), HashChain(16)
    whole.extend(ids, 100)
    for known in (5, 16, 40, 40, 100):
        cut.extend(ids, known)
    first = hashlib.sha256(
        pickle.dumps((FIRST_PARENT, tuple(range(16)), None), pickle.HIGHEST_PROTOCOL)
    ).digest()
    assert whole.digests[0] == first
    assert whole.digests == cut.digests
    assert len(whole.digests) == 6
    other = HashChain(16)
    other.extend(np.where(ids == 20, 21, ids), 100)
    assert [one == two for one, two in zip(whole.digests, other.digests, strict=True)] == [True] + [False] * 5


def test_clocks_move_by_what_they_are_told():
    shape = StepShape(100, 1, 5050, 0, 0)
    model, virtual = ModelClock(lambda shape: shape.prefill_tokens / 100), VirtualClock()
    ends = []
    for clock in (model, virtual):
        clock.spend(0.5)
        ends.append(clock.now + clock.step(shape, 0.25))
        clock.wait_until(0.1)
    assert ends == [1.0, 0.75]
    assert (model.now, virtual.now) == (0.1, 0.5)  # hashing is not modelled
