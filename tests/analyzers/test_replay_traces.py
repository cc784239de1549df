"""Four real traces through the bookkeeping, hit by hit what unmodified vLLM releases did with them."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.loss_kinds import LOSSES
from kvtune.analyzers.losses import losses_by_request
from kvtune.analyzers.replay import ReplayInput, ReplayResult, replay
from tests.analyzers.structures import DATA, TRACES, load_structure

structure = cache(load_structure)


def rows_of(file: str) -> list[Any]:
    rows = json.loads((DATA / "expected" / file).read_text())
    return [
        pytest.param(
            name,
            row,
            id=f"{name}-{row.get('vllm_version', '')}-{row['groups']}-u{row['unit']}-{row['num_blocks']}",
        )
        for name in rows
        for row in rows[name]
    ]


def run(inputs: ReplayInput, row: dict[str, Any]) -> ReplayResult:
    config = EngineConfig(
        groups=parse_groups(row["groups"]),
        version=row.get("vllm_version", "0.33.0"),
        match_unit=row["unit"],
        num_blocks=row["num_blocks"],
        max_num_batched_tokens=row["max_num_batched_tokens"],
        retention_interval=row.get("prefix_cache_retention_interval", 0),
    )
    return replay(config, inputs)


def check(result: ReplayResult, row: dict[str, Any]) -> None:
    hits = result.hit_tokens.astype("<i8")
    assert hits[:20].tolist() == row["first_20"]
    assert int(hits.sum()) == row["engine_hit_tokens"]
    assert hashlib.sha256(hits.tobytes()).hexdigest() == row["sha256_hits"]
    assert int((hits > 0).sum()) == row["requests_with_hit"]
    assert int(result.prefill_steps.sum()) == row["prefill_steps"]
    assert int(result.evicted_blocks.sum()) == row["evicted_blocks"]
    assert int(result.copies.sum()) == row["cow"]
    assert not result.refused


@pytest.mark.parametrize(("name", "row"), rows_of("engine.json"))
def test_the_newest_release(name: str, row: dict[str, Any]) -> None:
    check(run(structure(name)[0], row), row)


@pytest.mark.parametrize(("name", "row"), rows_of("engine-by-release.json"))
def test_every_release(name: str, row: dict[str, Any]) -> None:
    check(run(structure(name)[0], row), row)


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize(
    ("groups", "unit", "num_blocks"),
    [
        ("mamba:528*3,full:528", 16, None),
        ("mamba:1056*3,full:1056", 96, 220),
        ("full:528", None, 100),
        ("full:64,swa:64:window=1024", None, None),
    ],
)
def test_losses_and_hits_sum_to_what_is_shared(
    name: str, groups: str, unit: int, num_blocks: int | None
) -> None:
    inputs, shared = structure(name)
    config = EngineConfig(groups=parse_groups(groups), match_unit=unit, num_blocks=num_blocks)
    losses = losses_by_request(config, inputs, None, shared)
    assert tuple(losses) == LOSSES
    assert all((loss >= 0).all() for loss in losses.values())
    np.testing.assert_array_equal(sum(losses.values()) + replay(config, inputs).hit_tokens, shared)


def test_a_counted_pool_and_a_queued_one_agree() -> None:
    """An unlimited pool is only counted; a checked or recorded replay queues every block."""
    inputs, _ = structure("bfcl")
    config = EngineConfig(groups=parse_groups("mamba:528*3,full:528"), match_unit=48)
    counted, queued = replay(config, inputs), replay(config, inputs, record=True)
    for name in ("hit_tokens", "junction", "prefill_steps", "copies", "new_blocks", "lookup_probes"):
        np.testing.assert_array_equal(getattr(counted, name), getattr(queued, name))
    assert counted.num_keys == queued.num_keys
