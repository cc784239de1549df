"""Real traces as the bookkeeping sees them: lengths and prefix names, rebuilt from what each prompt shares."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvtune.analyzers.prefix_tree import KEY_SHIFT, PrefixPath
from kvtune.analyzers.replay import ReplayInput

DATA = Path(__file__).parent.parent / "data"
TRACES = ("miniswe", "bfcl", "tau-airline", "arena-judge")


def load_structure(name: str) -> tuple[ReplayInput, np.ndarray]:
    """The replay's input with one output token each, and how much each prompt shares (at most its length - 1)."""
    with np.load(DATA / "prefix-structure" / f"{name}.npz") as file:
        lengths, shared, peers = (file[key].tolist() for key in ("prompt_tokens", "shared", "shared_with"))
    paths: list[PrefixPath] = []
    for index, (length, share, peer) in enumerate(zip(lengths, shared, peers, strict=True)):
        ends, bases = [], []
        if share:
            above = paths[peer]
            keep = next(place for place, end in enumerate(above.ends) if end >= share)
            ends, bases = [*above.ends[:keep], share], above.bases[: keep + 1]
        if length > share:
            ends, bases = [*ends, length], [*bases, index << KEY_SHIFT]
        paths.append(PrefixPath(ends, bases))
    prompts = np.array(lengths, dtype=np.int64)
    inputs = ReplayInput(paths, prompts, np.ones(len(paths), dtype=np.int64))
    return inputs, np.minimum(np.array(shared, dtype=np.int64), prompts - 1)
