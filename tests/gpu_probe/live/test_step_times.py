"""Step times of a server: the plan of prompts, the fit by known truth, and what stops a measurement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from kvtune.analyzers.fitted_cost import FittedStepCost, check_usable
from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.sizing.sources import SizeSources
from kvtune.analyzers.step_times import StepShape
from kvtune.gpu_probe.live import isolation, step_times
from kvtune.gpu_probe.live.options import Listener, LiveOptions, Subject
from kvtune.gpu_probe.live.prediction import trace_of
from kvtune.gpu_probe.live.step_fit import Observed, fit_server
from kvtune.gpu_probe.live.step_times import StepTimesMeasurement
from kvtune.gpu_probe.live.validate import measure_steps, steps_validation
from kvtune.tokenization.errors import MissingDependencyError, UnusableInputError
from tests.gpu_probe.live.scripted_server import CONFIG, GROUPS_SPEC, Script, ScriptedServer, running

TRUTH = np.array([6e-3, 3e-5, 2e-9, 8e-4, 1e-7, 12e-3])
"""Seconds of a step, a token, a pair, a decode token, a decode position and a request."""


def silent() -> Listener:
    return Listener(
        note=lambda text: None, log_line=lambda text: None, progress=lambda name, done, total: None
    )


def planner(config: EngineConfig) -> StepTimesMeasurement:
    return StepTimesMeasurement(
        None,  # type: ignore[arg-type]
        "m",
        config,
        np.array([1, 2], dtype=np.uint32),
        silent(),
        seed=1,
    )


def test_steps_of_a_prompt_are_those_of_the_scheduler() -> None:
    """Blocks of 64: a prompt of 64 is one step; 80 stop at 64 for the state there, then 16 after 64 of them:
    64 * 65 / 2 and 16 * (2 * 64 + 17) / 2 pairs. A step budget of 32 cuts 64 in two."""
    hybrid = EngineConfig(groups=parse_groups("mamba:64*3,full:64"))
    assert planner(hybrid).steps_of(64) == ((64, 1, 2080, 0, 0),)
    assert planner(hybrid).steps_of(80) == ((64, 1, 2080, 0, 0), (16, 1, 1160, 0, 0))
    plain = EngineConfig(groups=parse_groups("full:16"), max_num_batched_tokens=32)
    assert planner(plain).steps_of(64) == ((32, 1, 528, 0, 0), (32, 1, 1552, 0, 0))


def prefills(*tokens: int) -> tuple[StepShape, ...]:
    """The steps of a cold prompt in chunks of so many tokens."""
    starts = np.cumsum((0, *tokens)).tolist()
    return tuple(
        StepShape(count, 1, count * (2 * start + count + 1) // 2, 0, 0)
        for start, count in zip(starts, tokens, strict=False)
    )


def timed(rows: list[tuple[StepShape, ...]], noise: float = 1.0) -> list[Observed]:
    """Times to first token by the truth."""
    return [
        Observed(
            row,
            1,
            noise * (TRUTH[5] + sum(float(np.array(step.features()[:5]) @ TRUTH[:5]) for step in row)),
        )
        for row in rows
    ]


def decoded() -> list[Observed]:
    shapes = [StepShape(0, 0, 0, count, 56 * count) for count in (1, 4, 8)]
    return [Observed((shape,), 0, float(np.array(shape.features()[:5]) @ TRUTH[:5])) for shape in shapes]


GRID = [
    prefills(*chunks)
    for chunks in ((16,), (64,), (256,), (256, 16), (512, 512), (512, 512, 16), (2048, 2048), (4096,))
]
HELD = [prefills(100), prefills(512, 188), prefills(2048, 952)]


def fitted(noise: float = 1.0) -> FittedStepCost:
    return fit_server([*timed(GRID), *decoded()], timed(HELD, noise), longest=4096, device="vLLM, a card")


def test_steps_bound_by_memory_are_fitted_with_bends() -> None:
    """A step takes the larger of 22 ms and 79 us a token, as a dense 27B on one card: 256 tokens cost hardly more than
    16. A straight line is off by more than half there. By hand: a step of 64 tokens costs 22 - 5.06 ms beyond its
    tokens, the time of 214."""
    sizes = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

    def seconds(tokens: int) -> float:
        return 0.01 + max(0.022, 79e-6 * tokens)

    rows = [Observed(prefills(size), 1, seconds(size)) for size in sizes]
    rows += [Observed((*prefills(1024), *prefills(16)), 1, 0.01 + 79e-6 * 1024 + 0.022)]
    rows += [Observed((StepShape(0, 0, 0, count, 0),), 0, 0.022) for count in (1, 4, 8)]
    held = [Observed(prefills(size), 1, seconds(size)) for size in (40, 100, 200, 700, 1500, 5000)]
    found = fit_server(rows, held, longest=8192, device="a card")
    assert found.token_bends and found.extrapolates
    assert found.mean_error < 0.10
    assert found.step_cost_tokens == pytest.approx(214, rel=0.1)
    stored = found.step_times()
    for size in (16, 256, 1024, 4096):
        (step,) = prefills(size)
        alone = stored.prefill_s(np.array([0]), np.array([size]))[0]
        assert stored.step_s(step) == pytest.approx(alone)
        assert alone == pytest.approx(max(0.022, 79e-6 * size), rel=0.25)


def test_steps_that_prefill_beside_streams_take_part() -> None:
    """Two requests that decode add their tokens to the step of the prompt, and one decode step of waiting."""
    step = StepShape(256, 1, 256 * 257 // 2, 2, 320)
    waited = StepShape(0, 0, 0, 2, 320)
    seconds = TRUTH[5] + sum(float(np.array(each.features()[:5]) @ TRUTH[:5]) for each in (waited, step))
    rows = [*timed(GRID), *decoded(), Observed((waited, step), 1, seconds)]
    found = fit_server(rows, timed(HELD), longest=4096, device="a card")
    assert found.decode_sequence_s == pytest.approx(TRUTH[3], rel=1e-6)
    assert found.mean_error < 1e-6


def test_step_and_request_overheads_are_told_apart() -> None:
    """Prompts of two and three steps, and decoding without a request's overhead, tell one from the other.

    By hand: a token of a long prefill takes 30 us and its pairs, (8,192 * 8,193 - 2,048 * 2,049) / 2 * 2 ns over
    6,144 tokens: 40.242 us. A step of 64 tokens takes 6 + 1.92 + 0.00416 ms, less 64 such tokens: 133 of them."""
    found = fitted()
    assert found.step_s == pytest.approx(TRUTH[0], rel=1e-6)
    assert found.prefill_token_s == pytest.approx(TRUTH[1], rel=1e-6)
    assert found.request_s == pytest.approx(TRUTH[5], rel=1e-6)
    assert found.step_cost_tokens == pytest.approx(132.92, abs=0.01)
    assert found.mean_error < 1e-6
    assert found.extrapolates
    info = found.step_times().info
    assert (info.source, info.provenance) == ("server", "measured on vLLM, a card")


def test_the_error_is_that_of_prompts_that_took_no_part_and_may_forbid_use() -> None:
    """Held-out prompts that take 1.25 times as long are predicted at 0.8 of it; at 1.5, at 0.67: beyond 20%."""
    near = fitted(1.25)
    assert (near.mean_error, near.median_error) == (pytest.approx(0.2), pytest.approx(0.2))
    far = fitted(1.5)
    assert far.reason is not None and "above 20% or 40%" in far.reason
    assert far.sentence().endswith("too far off, it prices nothing")
    with pytest.raises(UnusableInputError, match="at most 20% and 40%"):
        check_usable(far, "r.json")
    assert check_usable(near, "r.json") is near if near.extrapolates else near.reason is not None


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "QUIET_S", 0.05)
    for name, value in {
        "LENGTHS": (16, 64, 100),
        "REPEATS": 1,
        "HELD_OUT": 2,
        "STREAMS": (1, 2),
        "BESIDE_STREAMS": (2,),
    }.items():
        monkeypatch.setattr(step_times, name, value)


def measured(server: ScriptedServer, said: list[str], **options: object) -> FittedStepCost:
    return measure_steps(
        Subject(trace_of([np.arange(1, 300)]), SizeSources(groups=parse_groups(GROUPS_SPEC))),
        None,
        server.url,
        lambda config: (),
        LiveOptions(**options),  # type: ignore[arg-type]
        replace(silent(), note=said.append),
    )


@pytest.mark.usefixtures("few")
def test_cold_prompts_only_and_no_more_than_stated() -> None:
    said: list[str] = []
    with running(Script()) as server:
        found = measured(server, said)
    sent = [tuple(body["prompt"]) for body in server.sent]
    assert len(set(sent)) == len(sent) <= step_times.MOST_REQUESTS
    assert {len(prompt) for prompt in sent} >= {16, 64, 80, 100}
    assert len({body["cache_salt"] for body in server.sent}) == 1
    assert any("at most 250 prompts of random tokens" in text for text in said)
    assert (found.rung, found.held_out, found.device) == ("L3", 2, "vLLM 0.32.0, tiny")
    assert steps_validation(found).step_cost is found


def test_the_full_plan_stays_below_what_is_stated() -> None:
    lengths, pairs = len(step_times.LENGTHS), 4
    warm_up = 2 * lengths
    rounds = step_times.REPEATS * (lengths + pairs + step_times.HELD_OUT)
    streams = sum(step_times.STREAMS) + step_times.REPEATS * len(step_times.STREAMS)
    prompts = 1 + step_times.BESIDE_REPEATS * len(step_times.BESIDE_LENGTHS)
    streams += sum(step_times.BESIDE_STREAMS) + prompts * len(step_times.BESIDE_STREAMS)
    assert warm_up + rounds + streams <= step_times.MOST_REQUESTS


@pytest.mark.usefixtures("few")
def test_a_busy_server_and_a_hit_at_first_use_end_it() -> None:
    with (
        running(Script(foreign=1)) as server,
        pytest.raises(MissingDependencyError, match="others are using"),
    ):
        measured(server, [])
    assert server.sent == []
    first_use = pytest.raises(MissingDependencyError, match="hit the cache at its first use")
    with running(Script(wrong_at={1: 8})) as server, first_use:
        measured(server, [])
    refused = pytest.raises(MissingDependencyError, match="refuses a prompt of token ids")
    with running(Script(status_at={0: 400})) as server, refused as caught:
        measured(server, [])
    assert "secret" not in str(caught.value)
    assert CONFIG.match_unit == 16
