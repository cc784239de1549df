"""Traffic of conversations, made up: what one turn computed, the next one's prompt begins with."""

from __future__ import annotations

import numpy as np

from kvtune.tokenization.trace import TokenTrace
from tests.analyzers.traces import trace_of


def conversations(
    vocab: int,
    count: int = 5,
    turns: int = 3,
    seed: int = 0,
    gap: float = 0.01,
    *,
    system: int = 150,
    answers: tuple[int, int] = (1, 14),
    openings: tuple[int, int] = (10, 90),
    replies: tuple[int, int] = (20, 90),
) -> TokenTrace:
    """Turns of conversations under one system prompt, interleaved; answers are part of the next prompt.

    Args:
        gap: mean seconds between requests. system: tokens of the system prompt.
        answers, openings, replies: least and one more than the most tokens of each, first user messages being openings.
    """
    rng = np.random.default_rng(seed)
    head = rng.integers(0, vocab, system)
    history = [np.concatenate([head, rng.integers(0, vocab, rng.integers(*openings))]) for _ in range(count)]
    prompts, outputs, arrival, now = [], [], [], 0.0
    for _ in range(turns):
        for index in range(count):
            answer = rng.integers(0, vocab, int(rng.integers(*answers)))
            prompts.append(history[index])
            outputs.append(answer)
            history[index] = np.concatenate(
                [history[index], answer, rng.integers(0, vocab, rng.integers(*replies))]
            )
            now += rng.exponential(gap)
            arrival.append(now)
    return trace_of(prompts, outputs, arrival=np.array(arrival))
