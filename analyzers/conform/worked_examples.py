"""`kvtune-vllm-worked-examples/1`: small scenarios of 0.33, and one scenario through every release."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import pairwise
from typing import Any

import numpy as np

from kvtune.analyzers.bookkeeping.engine_loop import EngineLoop
from kvtune.analyzers.bookkeeping.scheduler import Scheduler, make_scheduler
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.conform.cases import prefix_paths
from kvtune.analyzers.conform.errors import meaning_of, meaning_of_refusal
from kvtune.analyzers.conform.result import ConformResult
from kvtune.analyzers.layout import Drafter, EngineConfig, Kind, KVCacheGroup
from kvtune.analyzers.profiles import PROFILES, ReleaseProfile
from kvtune.analyzers.refusal import EngineRefusal
from kvtune.tokenization.trace import UInt32

_KINDS: dict[str, Kind] = {"full": "full", "swa": "sliding_window", "mamba": "mamba"}
_SIZES = {
    "scheduler_block_size": "scheduler_block_size",
    "hash_block_size": "hash_block_size",
    "cache_hit_alignment": "cache_hit_alignment",
    "partial_hits": "partial_hits",
}
_STREAM = 100_000
_OUTPUTS = 900_000_000
_NUM_BLOCKS = 100_000
_MATRIX_BLOCK = 528


def conform_worked_examples(document: dict[str, Any]) -> ConformResult:
    """Compare every scenario of 0.33 and the version matrix."""
    result = ConformResult()
    newest = PROFILES["0.33"]
    for scenario in document["scenarios_0_33_0"]:
        result.cases += 1
        _conform_scenario(result, scenario, newest)
    matrix = document["version_matrix"]
    for name, releases in matrix["results"].items():
        for version, rows in releases.items():
            result.cases += 1
            profile = PROFILES[".".join(version.split(".")[:2])]
            _conform_matrix(
                result, f"{name} {version}", matrix["steps"], rows, _matrix_config(name, profile), profile
            )
    return result


def _conform_scenario(result: ConformResult, scenario: dict[str, Any], profile: ReleaseProfile) -> None:
    name, wanted = scenario["id"], scenario["result"]
    try:
        scheduler = make_scheduler(_scenario_config(scenario["config"], profile), profile)
    except EngineRefusal as refusal:
        kind, _, message = wanted.get("error", ": ").partition(": ")
        error = meaning_of({"type": kind, "message": message})
        result.compare(name, None, "error", error, meaning_of_refusal(refusal))
        return
    result.compare(name, None, "error", wanted.get("error"), None)
    for field, ours in _SIZES.items():
        result.compare(name, None, field, wanted[field], getattr(scheduler.sizes, ours))
    steps = wanted["steps"]
    for place, (step, found) in enumerate(zip(steps, _run(scheduler, steps), strict=True)):
        result.requests += 1
        expect = step["expect"]
        result.compare(name, place, "prompt_len", step["prompt_len"], found["prompt_len"])
        result.compare(name, place, "hit", expect["hit"], found["hit"])
        junction = expect["uncached_shared_prefix_boundary"]
        result.compare(name, place, "uncached_shared_prefix_boundary", junction, found["junction"])
        result.compare(name, place, "prefill_chunk_ends", expect["prefill_chunk_ends"], found["chunk_ends"])
        for group, keys in expect["resumable_keys_by_group"].items():
            ours_keys = found["keys"][int(group)]
            summary = ours_keys if isinstance(keys, list) else _summary(ours_keys)
            result.compare(name, place, f"resumable_keys_by_group.{group}", keys, summary)


def _conform_matrix(
    result: ConformResult,
    name: str,
    steps: Seq[dict[str, Any]],
    rows: Seq[dict[str, Any]],
    config: EngineConfig,
    profile: ReleaseProfile,
) -> None:
    found_rows = _run(make_scheduler(config, profile), steps)
    for place, (row, found) in enumerate(zip(rows, found_rows, strict=True)):
        result.requests += 1
        for field, ours in (
            ("prompt_len", found["prompt_len"]),
            ("hit", found["hit"]),
            ("boundary", found["junction"]),
            ("chunk_ends", found["chunk_ends"]),
            ("mamba_keys", found["keys"][1]),
        ):
            result.compare(name, place, field, row[field], ours)


def _run(scheduler: Scheduler, steps: Seq[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each step alone, to its end; what the vectors state about it."""
    texts: list[UInt32] = []
    shapes: list[tuple[int, int]] = []
    for number, step in enumerate(steps):
        prompt = np.concatenate([_expand(stream, length) for stream, length in step["prompt"]])
        output = _expand(f"o{number + 1}", step.get("out", 1))
        texts.append(np.concatenate([prompt, output]))
        shapes.append((len(prompt), len(output)))
    paths = prefix_paths(texts, [None] * len(texts))
    rows = []
    for number, (prompt_tokens, output_tokens) in enumerate(shapes):
        lookahead = scheduler.sizes.hash_lookahead_tokens
        sequence = Sequence(number, paths[number], prompt_tokens, output_tokens, lookahead=lookahead)
        scheduler.add_request(sequence)
        loop, ends = EngineLoop(scheduler), []
        while loop.has_work:
            plan, _ = loop.step()
            chunks = plan.chunks if plan is not None else []
            ends += [chunk.start + chunk.num_tokens for chunk in chunks if chunk.start < prompt_tokens]
        rows.append(
            {
                "prompt_len": prompt_tokens,
                "hit": sequence.first_hit,
                "junction": sequence.first_junction,
                "chunk_ends": ends,
                "keys": _keys_by_group(scheduler, sequence),
            }
        )
    return rows


def _keys_by_group(scheduler: Scheduler, sequence: Sequence) -> list[list[int]]:
    """Positions of the prompt and the generated tokens for which each group has a key."""
    unit = scheduler.sizes.hash_block_size
    positions = range(unit, sequence.num_hashed_tokens(unit) + 1, unit)
    return [
        [position for position in positions if index.first(sequence.key(position)) is not None]
        for manager in scheduler.coordinator.managers
        for index in manager.indexes
    ]


def _summary(keys: list[int]) -> dict[str, Any]:
    """How the vectors shorten a long list."""
    step = keys[1] - keys[0]
    return {
        "first": keys[0],
        "last": keys[-1],
        "count": len(keys),
        "step": step,
        "regular": all(later - earlier == step for earlier, later in pairwise(keys)),
        "tail": keys[-4:],
    }


def _expand(stream: int | str, length: int) -> UInt32:
    """`[n, length]`: the stream's first tokens; `["oK", length]`: the first tokens that step K generated."""
    start = _OUTPUTS + (int(stream[1:]) - 1) * _STREAM if isinstance(stream, str) else stream * _STREAM
    return np.arange(start, start + length, dtype=np.uint32)


def _scenario_config(config: dict[str, Any], profile: ReleaseProfile) -> EngineConfig:
    mtp = config.get("mtp")
    drafting = set(mtp["eagle_groups"]) if mtp else set()
    groups = tuple(
        KVCacheGroup(
            _KINDS[group["kind"]],
            group["block"],
            window=group.get("window"),
            mode="align" if group["kind"] == "mamba" else None,
            draft=place in drafting,
            export_alignment=group.get("ckpt_align"),
        )
        for place, group in enumerate(config["groups"])
    )
    drafter = None
    if mtp is not None:
        drafter = Drafter(
            "multi_module_mtp" if mtp.get("multi_module") else "mtp",
            mtp["k"],
            disable_lookahead_block_hashes=not mtp["lookahead_hashes"],
        )
    return EngineConfig(
        groups=groups,
        version=profile.version,
        match_unit=config.get("prefix_match_unit"),
        num_blocks=config.get("num_blocks", _NUM_BLOCKS),
        max_num_batched_tokens=config.get("max_num_batched_tokens", 8192),
        retention_interval=config.get("retention", 0),
        decode_context_parallel_size=config.get("dcp", 1),
        drafter=drafter,
        mamba_shared_prefix_checkpoint=config.get("shared_ckpt", False),
    )


def _matrix_config(name: str, profile: ReleaseProfile) -> EngineConfig:
    """`plain_unit16`, `mtp1_drop_unitNone`, …: one layout, retention 0 where the release has the option."""
    unit = name.rpartition("_unit")[2]
    drafts = name.startswith("mtp1_drop")
    return EngineConfig(
        groups=(
            KVCacheGroup("full", _MATRIX_BLOCK, draft=drafts),
            KVCacheGroup("mamba", _MATRIX_BLOCK, mode="align"),
        ),
        version=profile.version,
        match_unit=None if unit == "None" else int(unit),
        num_blocks=_NUM_BLOCKS,
        retention_interval=profile.default_retention_interval,
        drafter=Drafter("mtp", 1, disable_lookahead_block_hashes=True) if drafts else None,
    )
