"""The traces that are replayed: the bundled sample, a coding assistant's log as ids, and a sequence worked by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvtune.gpu_probe.live.prediction import trace_of
from kvtune.tokenization.encode import encode_trace
from kvtune.tokenization.encoding.open_encoder import open_prompt_encoder
from kvtune.tokenization.reading import read_trace
from kvtune.tokenization.request import Request
from kvtune.tokenization.trace import TokenTrace

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "samples" / "airline.jsonl.gz"
SAMPLE_MODEL = ROOT / "samples" / "tiny-hybrid"


@dataclass(frozen=True)
class Chats:
    """A trace of chats, and the requests that it was made of."""

    trace: TokenTrace
    requests: list[Request]


def airline() -> Chats:
    """All of the bundled sample, with the bundled vocabulary and template."""
    requests = read_trace([str(SAMPLE)]).requests
    trace, _ = encode_trace(requests, open_prompt_encoder(model=SAMPLE_MODEL))
    assert list(trace.ids) == [request.id for request in requests]
    return Chats(trace, requests)


def miniswe() -> TokenTrace:
    """200 requests of a coding assistant; `tests/data/live/SOURCE.md` says how they are kept."""
    kept = np.load(ROOT / "tests" / "data" / "live" / "miniswe-200.npz")
    prompts: list[np.ndarray] = []
    place = 0
    for earlier, shared, length in zip(kept["shared_with"], kept["shared"], kept["lengths"], strict=True):
        own = kept["tokens"][place : place + length - shared]
        place += length - shared
        prompts.append(np.concatenate((prompts[earlier][:shared], own)) if shared else own)
    return trace_of([prompt.astype(np.int64) for prompt in prompts])


def worked_by_hand() -> TokenTrace:
    """1,500 tokens in common, then tails of 100, 100, 0, 200 and 200 tokens, all different."""
    random = np.random.default_rng(7)
    common = random.integers(10, 5_000, 1_500)
    return trace_of(
        [np.concatenate((common, random.integers(10, 5_000, tail))) for tail in (100, 100, 0, 200, 200)]
    )


WORKED_BY_HAND = {
    None: [0, 0, 1280, 1280, 1280],
    16: [0, 0, 1280, 1488, 1488],
    32: [0, 0, 1280, 1472, 1472],
    128: [0, 0, 1280, 1408, 1408],
}
"""Blocks of 256. The second prompt finds the junction at 1,280 and ends a chunk there; the third hits that, and leaves
its own last boundary below 1,500, which the others then hit."""
