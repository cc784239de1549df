"""The 32 rows of `data/expected/step-time.json`: replays of four traces in two layouts, and their chunks' kernel times.

`chunk-times.npz` holds what `aiconfigurator-core` 0.12.0 says of every prefill chunk of these replays, so that the
tests need no library: for each server the chunk (start * 2**24 + tokens) and its milliseconds. Made by

    python -m tests.analyzers.step_times.published
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.replay import replay
from kvtune.analyzers.step_times.kernels import KernelAnswers, KernelQuery, KernelStepTimes
from kvtune.tokenization.trace import Int64
from tests.analyzers.structures import load_structure

EXPECTED = Path(__file__).parents[2] / "data" / "expected"
TABLE = EXPECTED / "chunk-times.npz"
LIBRARY = "0.12.0"
CONFIGS = {
    "Qwen/Qwen3.5-27B": "Qwen--Qwen3.5-27B",
    "Qwen/Qwen3.5-35B-A3B": "Qwen--Qwen3.5-35B-A3B",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
}


def rows() -> list[dict[str, Any]]:
    """One row a trace, layout and server."""
    return json.loads((EXPECTED / "step-time.json").read_text())["rows"]


def server_of(row: dict[str, Any]) -> str:
    """A server's name in the table."""
    return f"{CONFIGS[row['model']]}|{row['system']}|{row['tp']}"


@functools.cache
def chunks_of(trace: str, groups: str) -> dict[int, Int64]:
    """int64[C, 3] by unit: every prefill chunk of a sequential replay, unlimited pool, step budget 8,192."""
    inputs, _ = load_structure(trace)
    units = next(row["units"] for row in rows() if (row["trace"], row["groups"]) == (trace, groups))
    config = EngineConfig(groups=parse_groups(groups), max_num_batched_tokens=8192)
    block = max(map(int, units))
    return {
        unit: replay(
            EngineConfig(
                groups=config.groups, max_num_batched_tokens=8192, match_unit=None if unit == block else unit
            ),
            inputs,
        ).prefill_chunks
        for unit in map(int, units)
    }


def from_table(row: dict[str, Any]) -> KernelStepTimes:
    """Step times of a row's server, out of the table alone."""
    with np.load(TABLE) as table:
        name = server_of(row)
        answers = KernelAnswers(table[f"{name}|chunks"], table[f"{name}|ms"].astype(np.float64))
    return KernelStepTimes(KernelQuery("{}", row["system"], row["tp"]), row["system"], LIBRARY, answers)


def from_library(row: dict[str, Any]) -> KernelStepTimes:
    """The same, asked of the library."""
    from importlib import resources

    config = resources.files("aiconfigurator_core") / "model_configs" / f"{CONFIGS[row['model']]}_config.json"
    return KernelStepTimes(KernelQuery(config.read_text(), row["system"], row["tp"]), row["system"], LIBRARY)


def main() -> None:
    """Write the table."""
    kept: dict[str, Any] = {}
    servers: dict[str, KernelStepTimes] = {}
    for row in rows():
        times = servers.setdefault(server_of(row), from_library(row))
        for chunks in chunks_of(row["trace"], row["groups"]).values():
            times.prefill_s(chunks[:, 1], chunks[:, 2])
    for name, times in servers.items():
        kept[f"{name}|chunks"] = times.answers.chunks
        kept[f"{name}|ms"] = times.answers.chunk_ms.astype(np.float32)
    np.savez_compressed(TABLE, **kept)


if __name__ == "__main__":
    main()
