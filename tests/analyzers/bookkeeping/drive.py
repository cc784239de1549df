"""Drives an engine prompt by prompt and notes what happened to each."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvtune.analyzers.bookkeeping.engine_loop import EngineLoop
from kvtune.analyzers.bookkeeping.scheduler import Scheduler, make_scheduler
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.prefix_tree import build_prefix_tree
from kvtune.analyzers.profiles import profile_for
from kvtune.analyzers.replay import ReplayInput


def inputs_of(prompts: list[list[int]], outputs: list[int] | None = None) -> tuple[ReplayInput, np.ndarray]:
    lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    tokens = np.array([token for prompt in prompts for token in prompt], dtype=np.uint32)
    tree = build_prefix_tree(tokens, offsets, np.zeros(len(prompts), dtype=np.int32))
    generated = (
        np.ones(len(prompts), dtype=np.int64) if outputs is None else np.array(outputs, dtype=np.int64)
    )
    return ReplayInput(tree.paths, lengths, generated), np.minimum(tree.shared, lengths - 1)


@dataclass
class Run:
    hit: int = 0
    junction: int = 0
    copies: int = 0
    chunks: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


def run_prompts(
    config: EngineConfig, prompts: list[list[int]], outputs: list[list[int]] | None = None
) -> list[Run]:
    """Each prompt runs alone to its end; `outputs` are what it generates (one token of its own by default)."""
    scheduler = make_scheduler(config, profile_for(config.version).profile)
    return [run_sequence(scheduler, sequence) for sequence in sequences_of(scheduler, prompts, outputs)]


def sequences_of(
    scheduler: Scheduler, prompts: list[list[int]], outputs: list[list[int]] | None = None
) -> list[Sequence]:
    generated = outputs or [[] for _ in prompts]
    whole = [prompt + output for prompt, output in zip(prompts, generated, strict=True)]
    paths = inputs_of(whole)[0].paths
    lookahead = scheduler.sizes.hash_lookahead_tokens
    return [
        Sequence(index, paths[index], len(prompt), max(1, len(generated[index])), lookahead=lookahead)
        for index, prompt in enumerate(prompts)
    ]


def run_sequence(scheduler: Scheduler, sequence: Sequence) -> Run:
    run = Run()
    scheduler.add_request(sequence)
    loop = EngineLoop(scheduler)
    while loop.has_work:
        plan, _ = loop.step()
        if plan is None:
            continue
        run.copies += len(plan.copies)
        for chunk in plan.chunks:
            if chunk.start < sequence.num_prompt_tokens:
                run.chunks.append(chunk.num_tokens)
                run.ends.append(chunk.start + chunk.num_tokens)
    run.hit, run.junction = sequence.first_hit, sequence.first_junction
    return run
