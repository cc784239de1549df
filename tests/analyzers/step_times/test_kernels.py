"""The kernel library: asked once, silenced, never sent to a network, done without where it is missing."""

from __future__ import annotations

import importlib.util
import json
import pickle
import socket
from pathlib import Path

import numpy as np
import pytest

from kvtune.analyzers.hardware import parse_hardware
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.step_times import StepShape, choice
from kvtune.analyzers.step_times.choice import step_times_on
from kvtune.analyzers.step_times.kernels import KernelQuery, KernelStepTimes, _on_grid, library_version

CONFIGS = Path(__file__).parents[2] / "data" / "models" / "configs"
needs_library = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None, reason="the extra kvtune[times] is not installed"
)


def config_of(name: str) -> ModelConfig:
    return ModelConfig.parse(json.loads((CONFIGS / name / "config.json").read_text()), where=name)


class Library:
    """Stands for the library's model: counts what it is asked. A step takes 1 ms and a microsecond a token."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def predict_prefill_latency(self, requests: int, isl: int, prefix: int) -> float:
        self.asked.append(("prefill", requests, isl, prefix))
        return 1.0 + (isl - prefix) / 1000

    def decode_step_latency(self, requests: int, isl: int, osl: int) -> float:
        self.asked.append(("decode", requests, isl))
        return 2.0 + requests * isl / 1e6

    def mixed_step_latency(self, tokens: int, decodes: int, isl: int, osl: int, prefix: int) -> float:
        self.asked.append(("mixed", tokens, decodes, isl, prefix))
        return 3.0 + tokens / 1000


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> KernelStepTimes:
    library = Library()
    monkeypatch.setattr("kvtune.analyzers.step_times.kernels._compile", lambda query: library)
    return KernelStepTimes(KernelQuery("{}", "h100_sxm"), "H100", "1.0")


def test_each_different_chunk_is_asked_once(times: KernelStepTimes) -> None:
    start, tokens = np.array([0, 528, 0, 0]), np.array([64, 16, 64, 16])
    np.testing.assert_allclose(times.prefill_s(start, tokens), [1.064e-3, 1.016e-3, 1.064e-3, 1.016e-3])
    times.prefill_s(start, tokens)
    assert len(times.engine.asked) == 3
    again = pickle.loads(pickle.dumps(times))
    np.testing.assert_allclose(again.prefill_s(start, tokens), times.prefill_s(start, tokens))


def test_decode_is_linear_in_the_context_and_runs_are_sums(times: KernelStepTimes) -> None:
    assert times.decode_s(1, 4, 4000) == pytest.approx((2.0 + 4 * 1000 / 1e6) / 1000)
    single = sum(times.decode_s(1, 4, 4000 + 4 * step) for step in range(6))
    assert times.decode_s(6, 4, 4000) == pytest.approx(single)
    assert times.step_s(StepShape(0, 0, 0, 4, 4000)) == pytest.approx(times.decode_s(1, 4, 4000))


def test_a_mixed_step_takes_no_less_than_its_decoding_alone(times: KernelStepTimes) -> None:
    prefill = 16 * 17 // 2
    mixed = times.step_s(StepShape(16, 1, prefill, 4, 4000))
    assert mixed == pytest.approx((3.016 + 4 / 1e6 * (1000 - 16)) / 1000)
    assert times.step_s(StepShape(16, 1, prefill, 4, 4 * 10**6)) >= times.decode_s(1, 4, 4 * 10**6)
    assert times.step_s(StepShape(0, 0, 0, 0, 0)) == 0.0


def test_the_grid_is_within_a_thirtysecond_of_an_octave() -> None:
    for value in (1, 31, 33, 528, 1056, 8192, 99_999):
        assert _on_grid(value) == pytest.approx(value, rel=2 ** (1 / 32) - 1 + 1e-3 + (value < 33))
    assert [_on_grid(value) for value in range(33)] == list(range(33))


def test_without_the_library_the_roofline_answers_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "has_library", lambda: False)
    found = step_times_on(
        parse_hardware("H100").gpu,
        config_of("qwen3.5-27b"),
        tensor_parallel=1,
        expert_parallel=False,
        kv_cache_dtype="auto",
    )
    assert found.times is not None and found.times.info.source == "roofline"
    assert found.notes == (
        "Step times are estimated: real ones are 0.49 to 2.04 times as long. pip install 'kvtune[times]' brings kernel "
        "times measured on H100.",
    )


def test_without_a_config_there_are_no_times() -> None:
    found = step_times_on(
        parse_hardware("H100").gpu, None, tensor_parallel=1, expert_parallel=False, kv_cache_dtype="auto"
    )
    assert found.times is None
    assert "--model-config" in found.notes[0]


@needs_library
@pytest.mark.parametrize(
    ("name", "card", "source", "why"),
    [
        ("qwen3.5-35b-a3b", "H100", "kernels", None),
        ("qwen3-next-80b-a3b", "H100", "roofline", "is not supported"),
        ("qwen3.5-27b", "A100-80GB", "roofline", "data missing"),
        ("qwen3.5-27b", "RTX 4090", "roofline", "No kernel times are measured on RTX-4090"),
    ],
)
def test_what_the_library_does_not_know_is_estimated(
    name: str, card: str, source: str, why: str | None, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    found = step_times_on(
        parse_hardware(card).gpu,
        config_of(name),
        tensor_parallel=1,
        expert_parallel=False,
        kv_cache_dtype="auto",
    )
    assert found.times is not None and found.times.info.source == source
    assert [why in note and "\n" not in note for note in found.notes] == ([True] if why else [])
    assert capfd.readouterr() == ("", "")


@needs_library
def test_the_key_names_all_that_decides_the_times() -> None:
    plain = KernelQuery("{}", "h100_sxm")
    others = [
        KernelQuery('{"a": 1}', "h100_sxm"),
        KernelQuery("{}", "h200_sxm"),
        KernelQuery("{}", "h100_sxm", 2),
        KernelQuery("{}", "h100_sxm", 1, True),
        KernelQuery("{}", "h100_sxm", 1, False, "fp8"),
    ]
    assert len({plain.key(), *(query.key() for query in others)}) == 6
    assert library_version()
