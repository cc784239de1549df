"""Prefill times by unit against the published table: every unit within 0.1%, the same best unit."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from kvtune.analyzers.step_times.kernels import KernelStepTimes
from kvtune.analyzers.step_times.overhead import step_overhead
from tests.analyzers.step_times.published import chunks_of, from_library, from_table, rows, server_of

ROWS = rows()
NAMES = [f"{row['trace']}-{row['groups'].split(':')[1][:4]}-{server_of(row)}" for row in ROWS]


def prefill_ms(times: KernelStepTimes, row: dict[str, Any]) -> dict[int, float]:
    return {
        unit: 1000 * float(times.prefill_s(chunks[:, 1], chunks[:, 2]).sum())
        for unit, chunks in chunks_of(row["trace"], row["groups"]).items()
    }


def compare(times: KernelStepTimes, row: dict[str, Any]) -> None:
    found = prefill_ms(times, row)
    for unit, expected in row["units"].items():
        assert found[int(unit)] == pytest.approx(expected["prefill_ms"], rel=1e-3)
        assert len(chunks_of(row["trace"], row["groups"])[int(unit)]) == expected["chunks"]
    assert found[row["least_time_unit"]] <= min(found.values()) * 1.001


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_every_row_from_the_kept_table(row: dict[str, Any]) -> None:
    compare(from_table(row), row)


@pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None, reason="the extra kvtune[times] is not installed"
)
def test_every_row_from_the_library() -> None:
    for row in ROWS:
        compare(from_library(row), row)


def test_the_best_unit_flips_between_a_dense_model_and_a_mixture_of_experts() -> None:
    """tau-airline, block 1,056, one H100: 352 for 27B, unset for 35B-A3B; unit 32, best at 128 tokens a step, makes
    27B 21.3% faster and 35B-A3B 3.2% slower."""
    wanted = {"Qwen/Qwen3.5-27B": (352, -0.213), "Qwen/Qwen3.5-35B-A3B": (1056, 0.032)}
    for row in ROWS:
        if row["trace"] == "tau-airline" and "1056" in row["groups"] and row["system"] == "h100_sxm":
            if row["model"] not in wanted:
                continue
            best, change = wanted[row["model"]]
            found = prefill_ms(from_table(row), row)
            assert min(found, key=lambda unit: found[unit]) == best
            assert found[32] / found[1056] - 1 == pytest.approx(change, abs=5e-4)


class PublishedTtft:
    """Kimi-K3 on eight B300, TTFT as sglang published it in August 2026."""

    TOKENS = np.array([129, 513, 2049, 8193, 16385])
    MS = np.array([179.5, 185.8, 187.0, 539.0, 908.0])

    def prefill_s(self, start: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        assert not start.any()
        return np.interp(tokens, self.TOKENS, self.MS) / 1000


def test_the_published_ttft_of_kimi_k3_gives_an_overhead_above_2000_tokens() -> None:
    """A token of a long prefill takes 352 ms / 6,144 = 0.057 ms; a step of 64 tokens about 179 ms: 3,100 tokens."""
    found = step_overhead(PublishedTtft())  # type: ignore[arg-type]
    assert 2_000 < found.low < found.high < 4_000


@pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None, reason="the extra kvtune[times] is not installed"
)
@pytest.mark.parametrize(
    ("place", "low", "high"),
    [(0, 73, 266), (8, 1_025, 1_894), (24, 8, 35)],
    ids=["27B on H100", "35B-A3B on H100", "27B on four L40S"],
)
def test_step_overheads_are_those_of_the_published_table(place: int, low: int, high: int) -> None:
    found = step_overhead(from_library(ROWS[place]))
    assert (round(found.low), round(found.high)) == (low, high)
