"""`validate_on_engine`: from a trace to the report's validation, agreement and disagreement, and every refusal."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from kvtune.analyzers.layout import Drafter, EngineConfig, KVCacheGroup
from kvtune.analyzers.step_times import LinearStepTimes
from kvtune.gpu_probe.validate import ProbeOptions, validate_on_engine
from kvtune.tokenization.errors import MissingDependencyError, NoUsableRequestError, UnusableInputError
from kvtune.tokenization.trace import TokenTrace
from tests.gpu_probe.tiny_model import CONFIG

pytest.importorskip("torch")

SERVER = EngineConfig(
    groups=(KVCacheGroup("mamba", 64, mode="align"), KVCacheGroup("full", 64)), max_num_batched_tokens=256
)


def trace_of(count=10, seed=0, **changes):
    rng = np.random.default_rng(seed)
    system = rng.integers(0, 400, 70)
    prompts = [
        np.concatenate([system, rng.integers(0, 400, int(rng.integers(5, 60)))]) for _ in range(count // 2)
    ]
    prompts += [np.concatenate([prompt, rng.integers(0, 400, 30)]) for prompt in prompts]
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in prompts])])
    fields = {
        "tokens": np.concatenate(prompts).astype(np.uint32),
        "offsets": offsets,
        "prompt_tokens": np.diff(offsets),
        "arrival": np.arange(len(prompts)) * 0.004,
        "namespace": np.zeros(len(prompts), np.int32),
        "ids": [f"r{index}" for index in range(len(prompts))],
        "output_tokens": np.full(len(prompts), 3),
    }
    return TokenTrace(**{**fields, **changes})


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def silent(stage, done, total):
    """Progress that nobody watches."""


def run(options, trace=None, config=SERVER, units=(None, 16, 32)):
    return validate_on_engine(trace or trace_of(), config, list(units), options, silent).validation


def test_every_candidate_agrees_and_a_small_pool_evicts(model):
    found = run(ProbeOptions(model=model, outputs="length", self_check=True, check=True))
    assert found.agrees, found.differences
    assert [row.unit for row in found.candidates] == [64, 16, 32]
    assert [row.matched_tokens for row in found.candidates] == [
        row.predicted_tokens for row in found.candidates
    ]
    assert found.candidates[1].matched_tokens > found.candidates[0].matched_tokens > 0
    assert found.candidates[1].copied_tokens > 0
    assert found.rung.startswith("L0")
    assert (found.requests, found.trace_requests, found.runs, found.order) == (10, 10, 1, "64 16 32")
    assert any("blocks evicted" in note for note in found.notes)
    first = found.candidates[0]
    assert first.ttft_s.p50 > 0.004  # a step costs 4 ms on the nominal machine
    assert first.hash_cpu_s is None


def test_two_runs_of_the_model_clock_give_the_same_bytes(model):
    options = ProbeOptions(model=model, outputs="length", arrivals="trace", slo={"ttft": 0.05, "tpot": 0.02})
    one, two = (msgspec.json.encode(run(options)) for _ in range(2))
    assert one == two
    assert b'"goodput_rps":null' not in one
    assert b'"largest_rate":null' not in one


def unhurried():
    """Requests 50 ms apart, for steps of about 5 ms."""
    return trace_of(arrival=np.arange(10) * 0.05)


def test_the_largest_rate_is_rehearsed_under_the_model_clock(model):
    options = ProbeOptions(model=model, arrivals="trace", slo={"ttft": 0.02})
    found = run(options, unhurried())
    assert found.rate_search.method == "rehearsed"
    assert found.rate_search.qualifying_share == 0.95
    for row in found.candidates:
        assert 1.0 <= row.largest_rate < row.missed_rate <= row.largest_rate * 1.01 * (1 + 1e-9)
    assert run(replace(options, slo={"ttft": 1e-9}), unhurried()).candidates[0].largest_rate == 0
    easy = run(replace(options, slo={"ttft": 1e9}), unhurried()).candidates[0]
    assert (easy.largest_rate, easy.missed_rate) == (64.0, None)


def test_fitted_costs_time_the_model_clock(model):
    """Steps of ten seconds and nothing else: the first of requests in turn gets its token after one step."""
    cost = LinearStepTimes((10.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    found = run(ProbeOptions(model=model, step_times=cost, priced_by="v.json"), units=(None,))
    assert found.candidates[0].ttft_s.p50 in (10.0, 20.0)
    assert any(
        note.startswith("times are those of the machine of v.json whose step overhead is 1e+04 ms")
        for note in found.notes
    )


@pytest.fixture
def few_batches(monkeypatch):
    """A design that is timed in a moment, too small for a good fit."""
    from kvtune.gpu_probe.engine.calibrate import Design

    grid = [[(0, count)] for count in (16, 32, 64, 96)] + [[(64, 1)] * count for count in range(1, 13)]
    small = Design(grid, [[(0, 48)], [(64, 1)] * 5, [(0, 80)]])
    monkeypatch.setattr(Design, "reaching", classmethod(lambda cls, longest: small))


@pytest.fixture
def by_the_clock(monkeypatch):
    """Measured clocks in steps of what a nominal machine takes, so that what they decide can be known beforehand, the
    guess included from which a search starts: it comes from a fit of this machine otherwise."""
    from kvtune.analyzers.step_times import ASSUMED
    from kvtune.gpu_probe.engine import session
    from kvtune.gpu_probe.engine.clocks import VirtualClock
    from kvtune.gpu_probe.engine.rates import RateFinder

    monkeypatch.setattr(VirtualClock, "step", lambda self, shape, measured_s: ASSUMED.step_s(shape))
    monkeypatch.setattr(VirtualClock, "spend", lambda self, measured_s: None)
    monkeypatch.setattr(session, "RateFinder", lambda *given: RateFinder(*given[:-1], ASSUMED))


@pytest.mark.parametrize("arrivals", ["sequential", "trace"])
def test_an_executed_largest_rate_is_the_rehearsed_one(model, few_batches, by_the_clock, arrivals):
    """On a machine whose steps take what the model clock says, both ways find the same, but for a few requests around
    the limit: with ten of them a rate may miss below one that is met."""
    slo = {"ttft": 0.02}
    rehearsed = run(ProbeOptions(model=model, arrivals=arrivals, slo=slo), unhurried())
    found = run(ProbeOptions(model=model, arrivals=arrivals, slo=slo, clock="virtual", runs=1), unhurried())
    assert found.rate_search.method == "executed"
    assert found.rate_search.complete
    for one, two in zip(rehearsed.candidates, found.candidates, strict=True):
        assert one.largest_rate >= 2.0
        assert two.largest_rate == pytest.approx(one.largest_rate, rel=0.25)
        assert two.missed_rate <= two.largest_rate * found.rate_search.resolution * (1 + 1e-9)


def test_the_search_ends_with_its_time(model, few_batches, by_the_clock, monkeypatch):
    from kvtune.gpu_probe.engine import rates

    monkeypatch.setattr(rates, "BUDGET_S", 0.0)
    found = run(ProbeOptions(model=model, slo={"ttft": 1e9}, clock="virtual", runs=1), units=(None, 16))
    assert not found.rate_search.complete
    assert [(row.largest_rate, row.missed_rate) for row in found.candidates] == [(1.0, None)] * 2


@pytest.mark.parametrize(
    ("arrival", "words"),
    [
        (np.full(10, np.nan), "the trace has no arrival times"),
        (np.full(10, 3.0), "all requests arrive at once"),
    ],
)
def test_without_a_rate_there_is_none_to_multiply(model, arrival, words):
    found = run(ProbeOptions(model=model, slo={"ttft": 1.0}), trace_of(arrival=arrival))
    assert found.rate_search is None
    assert [row.largest_rate for row in found.candidates] == [None] * 3
    assert found.candidates[0].goodput_rps > 0
    assert f"the largest load that meets the objectives was not looked for: {words}" in found.notes


def test_a_search_that_runs_out_of_memory_keeps_what_was_found(model, few_batches, monkeypatch):
    from kvtune.gpu_probe.engine import rates
    from kvtune.gpu_probe.engine.probe import OutOfMemoryError

    def crowded(searches, try_rate, *, budget_s):
        for place, search in enumerate(searches):
            search.tell(met=try_rate(place, 1.0))
        raise OutOfMemoryError("ran out of memory during a step", where="cpu")

    monkeypatch.setattr(rates, "search_together", crowded)
    found = run(ProbeOptions(model=model, slo={"ttft": 1e9}, clock="virtual", runs=1), units=(None, 16))
    assert [row.largest_rate for row in found.candidates] == [1.0, 1.0]
    assert not found.rate_search.complete
    assert "the search for the largest load ended early: cpu: ran out of memory during a step" in found.notes


def test_an_interrupted_search_keeps_what_was_found(model, few_batches, monkeypatch):
    from kvtune.gpu_probe.engine import rates

    def interrupted(searches, try_rate, *, budget_s):
        searches[0].tell(met=try_rate(0, 1.0))
        raise KeyboardInterrupt

    monkeypatch.setattr(rates, "search_together", interrupted)
    options = ProbeOptions(model=model, slo={"ttft": 1e9}, clock="virtual", runs=1)
    result = validate_on_engine(trace_of(), SERVER, [None, 16], options, silent)
    assert result.interrupted
    assert [row.largest_rate for row in result.validation.candidates] == [1.0, None]
    assert not result.validation.rate_search.complete


def test_measured_clocks_fit_what_a_step_costs(model, few_batches):
    found = run(ProbeOptions(model=model, clock="virtual", runs=1), units=(None,)).step_cost
    assert (found.covers, found.layers, found.model_layers, found.held_out) == ("model", 2, 2, 3)
    assert found.device.startswith("CPU")
    assert found.step_s > 0
    assert found.own_steps_error is not None
    assert found.extrapolates == (found.reason is None)
    stand_in = run(ProbeOptions(clock="virtual", runs=1, requests=3), units=(None,)).step_cost
    assert (stand_in.covers, stand_in.model_layers, stand_in.extrapolates) == ("stand_in", None, False)
    assert run(ProbeOptions(model=model), units=(None,)).step_cost is None  # nothing is measured


def test_a_few_layers_are_composed_or_price_nothing(tmp_path, few_batches):
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 8}))
    found = run(ProbeOptions(model=folder, layers=1, clock="virtual", runs=1, requests=2), units=(None,))
    cost = found.step_cost
    assert found.rung == "L1 full width, 2 of 8 layers, synthetic weights"
    assert cost.model_layers == 8
    if cost.covers == "composed":
        assert cost.layers == 8  # (4, 4), all that there are
        assert cost.extrapolates
    else:
        assert (cost.covers, cost.layers, cost.extrapolates) == ("layers", 2, False)
        assert cost.reason.startswith(
            "only some of the model's layers were timed; all of them: held-out error"
        )
    assert any(note.startswith("a step of all 8 layers costs like") for note in found.notes)


def test_measured_clocks_pair_their_runs(model, few_batches):
    found = run(ProbeOptions(model=model, clock="virtual", runs=2), units=(None, 16))
    assert found.order == "64 16 16 64"
    other = found.candidates[1]
    assert other.ttft_change is not None
    assert other.ttft_change_ci95 is not None
    assert found.candidates[0].ttft_change is None
    assert other.hash_cpu_s > 0
    assert 0 < other.hash_share < 1


def test_exact_runs_are_compared_with_no_cache(model):
    found = run(ProbeOptions(model=model, exact=True, outputs="length"))
    assert found.agrees
    assert any(note.startswith("exact: 30 tokens' logits") for note in found.notes)


def test_a_wrong_state_is_reported(model, monkeypatch):
    """The conv state of every hit is lost: counts agree, tokens do not."""
    from kvtune.gpu_probe.engine import executor

    original = executor.build_step

    def broken(segments, *arguments, **options):
        step, copies = original(segments, *arguments, **options)
        for group, source in step.state_source.items():
            step.state_source[group] = source * 0
        return step, copies

    monkeypatch.setattr(executor, "build_step", broken)
    found = run(ProbeOptions(model=model, exact=True, outputs="length"))
    assert not found.agrees
    assert any("logits differ" in text for text in found.differences)


def test_a_wrong_prediction_is_reported(model, monkeypatch):
    from kvtune.gpu_probe.engine import session

    original = session.replay

    def shifted(config, inputs, **options):
        result = original(config, inputs, **options)
        return replace(result, hit_tokens=result.hit_tokens + (config.match_unit == 16))

    monkeypatch.setattr(session, "replay", shifted)
    found = run(ProbeOptions(model=model))
    assert not found.agrees
    assert found.differences == (
        "unit 16: hit tokens differ in 10 of 10 requests; the first is r0 (predicted 1, executed 0)",
    )


def test_the_first_requests_are_run_where_the_user_says_so(model):
    found = run(ProbeOptions(model=model, requests=4))
    assert (found.requests, found.trace_requests) == (4, 10)
    assert any(note.startswith("the first 4 of 10 requests") for note in found.notes)


@pytest.mark.parametrize("reason", ["the user", "memory"])
def test_an_interruption_keeps_what_is_finished(model, monkeypatch, reason):
    from kvtune.gpu_probe.engine.probe import OutOfMemoryError, Probe

    stop = (
        KeyboardInterrupt() if reason == "the user" else OutOfMemoryError("ran out of memory during a step")
    )
    original, calls = Probe.run, []

    def twice(self, *arguments, **options):
        calls.append(1)
        if len(calls) > 2:
            raise stop
        return original(self, *arguments, **options)

    monkeypatch.setattr(Probe, "run", twice)
    result = validate_on_engine(trace_of(), SERVER, [None, 16, 32], ProbeOptions(model=model), silent)
    assert result.interrupted
    assert [row.unit for row in result.validation.candidates] == [64, 16]


def test_the_bundled_model_takes_ids_of_any_vocabulary():
    tokens = trace_of().tokens + np.uint32(200_000)
    found = run(ProbeOptions(requests=3), trace_of(tokens=tokens), units=(16,))
    assert found.agrees
    assert any("modulo" in note for note in found.notes)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            replace(SERVER, groups=(KVCacheGroup("full", 64),)),
            "gated_delta_net layers, the groups have no mamba group",
        ),
        (
            replace(SERVER, groups=(*SERVER.groups, KVCacheGroup("chunked_local", 64, window=64))),
            "lacks chunked_local",
        ),
        (replace(SERVER, drafter=Drafter("eagle", 2)), "lacks draft tokens"),
        (replace(SERVER, decode_context_parallel_size=2), "lacks context parallelism"),
        (replace(SERVER, num_blocks=1 << 40), r"does not fit on cpu .*wanted at most \d+ blocks"),
    ],
)
def test_settings_that_cannot_be_executed_are_refused(model, config, words):
    with pytest.raises(UnusableInputError, match=words):
        run(ProbeOptions(model=model), config=config)


def test_ids_beyond_the_vocabulary_are_refused(model):
    tokens = trace_of().tokens.copy()
    tokens[-1] = 400
    with pytest.raises(UnusableInputError, match=r"request r9: .*found 400, wanted below 400"):
        run(ProbeOptions(model=model), trace_of(tokens=tokens))


def test_block_hashes_cannot_be_computed(model):
    trace = trace_of()
    hashes = replace(trace, span=16, prompt_tokens=trace.prompt_tokens * 16)
    with pytest.raises(NoUsableRequestError, match="block hashes"):
        run(ProbeOptions(model=model), hashes)


def test_arrivals_need_times(model):
    with pytest.raises(UnusableInputError, match="--arrivals"):
        run(ProbeOptions(model=model, arrivals="trace"), trace_of(arrival=np.full(10, np.nan)))


def test_without_a_gpu_there_is_no_gpu_run(model):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(MissingDependencyError, match=r"no GPU for --gpu .*use --device cpu"):
        run(ProbeOptions(model=model, device="cuda"))


def test_torch_is_imported_by_nobody_but_the_engine():
    modules = "kvtune.cli.app, kvtune.gpu_probe.validate, kvtune.gpu_probe.choosing"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
