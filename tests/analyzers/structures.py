"""Real traces as the bookkeeping sees them: lengths and prefix names, rebuilt from what each prompt shares."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvtune.analyzers.prefix_tree import KEY_SHIFT, PrefixPath
from kvtune.analyzers.replay import ReplayInput

DATA = Path(__file__).parent.parent / "data"
TRACES = ("miniswe", "bfcl", "tau-airline", "arena-judge")


def load_structure(name: str) -> tuple[ReplayInput, np.ndarray]:
    """The replay's input, and how much each prompt shares (at most its length - 1).

    One output token each, but for a `-recorded` structure: there paths go on with the answers, which have arrivals.
    """
    with np.load(DATA / "prefix-structure" / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    prompts = arrays["prompt_tokens"].astype(np.int64)
    outputs = arrays.get("output_tokens", np.zeros(len(prompts))).astype(np.int64)
    paths: list[PrefixPath] = []
    lengths = (prompts + outputs).tolist()
    shared, peers = arrays["shared"].tolist(), arrays["shared_with"].tolist()
    for index, (length, share, peer) in enumerate(zip(lengths, shared, peers, strict=True)):
        ends, bases = [], []
        if share:
            above = paths[peer]
            keep = next(place for place, end in enumerate(above.ends) if end >= share)
            ends, bases = [*above.ends[:keep], share], above.bases[: keep + 1]
        if length > share:
            ends, bases = [*ends, length], [*bases, index << KEY_SHIFT]
        paths.append(PrefixPath(ends, bases))
    arrival = arrays["arrival"].astype(np.float64) if "arrival" in arrays else None
    inputs = ReplayInput(paths, prompts, np.maximum(outputs, 1), arrival)
    return inputs, np.minimum(arrays["shared"].astype(np.int64), prompts - 1)
