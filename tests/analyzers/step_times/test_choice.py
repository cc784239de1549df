"""Which step times a named GPU gives for which model."""

from __future__ import annotations

import pytest

from kvtune.analyzers.hardware import parse_hardware
from kvtune.analyzers.step_times import kernels
from kvtune.analyzers.step_times.choice import ChosenStepTimes, step_times_on
from kvtune.analyzers.step_times.kernels import UnknownToKernelsError
from tests.analyzers.step_times.test_model_work import TINY, named, parsed


def chosen(name: str, card: str) -> ChosenStepTimes:
    return step_times_on(
        parse_hardware(card).gpu,
        named(name),
        tensor_parallel=1,
        expert_parallel=False,
        kv_cache_dtype="auto",
    )


def test_estimates_on_consumer_cards_say_so() -> None:
    result = chosen("granite-4.0-h-tiny", "RTX 4090")
    assert result.times is not None and result.times.info.source == "roofline"
    assert result.notes == (
        "Step times are estimated: real ones are 0.45 to 2.04 times as long. No kernel times are measured on RTX-4090.",
    )


def test_a_config_that_lacks_a_size_gives_none_and_says_why() -> None:
    result = chosen("nemotron-h-8b", "RTX 4090")
    assert result.times is None
    assert len(result.notes) == 1
    assert "intermediate_size" in result.notes[0] and "hub's config.json" in result.notes[0]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "The model's architecture XForCausalLM is not supported. Supported architectures: A, B",
            "The model's architecture XForCausalLM is not supported",
        ),
        (
            'perf database error: MoE data missing for MoeKey { quant: "bfloat16" } at /x/y',
            "perf database error: MoE data missing",
        ),
        ("bad geometry", "bad geometry"),
    ],
)
def test_refusals_of_the_library_are_short(text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_query: object) -> object:
        raise UnknownToKernelsError(kernels._one_line(ValueError(text)))

    monkeypatch.setattr(kernels, "_compile", refuse)
    monkeypatch.setattr("kvtune.analyzers.step_times.choice.has_library", lambda: True)
    monkeypatch.setattr("kvtune.analyzers.step_times.choice.library_version", lambda: "0.12.0")
    monkeypatch.setattr(kernels, "library_version", lambda: "0.12.0")
    result = step_times_on(
        parse_hardware("H100").gpu,
        parsed(TINY),
        tensor_parallel=1,
        expert_parallel=False,
        kv_cache_dtype="auto",
    )
    assert result.times is not None and result.times.info.source == "roofline"
    assert result.notes == (
        "Step times are estimated: real ones are 0.49 to 2.04 times as long. No kernel times of this model are "
        f"measured on H100 ({shown}).",
    )
