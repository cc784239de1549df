"""The same prompts as token ids and as block hashes give the same ideal hits at every multiple of the block.

Prompts are random walks down a tree, so that they share prefixes of every length; hashes are made of whole
prefixes, as Bailian's and Mooncake's were.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtune.analyzers.shared import find_shared_prefixes
from kvtune.tokenization.encode import encode_trace
from kvtune.tokenization.reading import read_trace
from kvtune.tokenization.trace import Int64


def prompts(seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    made: list[list[int]] = []
    for _ in range(60):
        start = rng.choice(made)[: rng.randint(1, 300)] if made and rng.random() < 0.8 else []
        made.append(start + [rng.randrange(50_000) for _ in range(rng.randint(1, 120))])
    return made + made[:5]


def hashed(ids: list[int], block: int, known: dict[tuple[int, ...], int]) -> list[int]:
    return [known.setdefault(tuple(ids[: at + block]), len(known)) for at in range(0, len(ids), block)]


def bailian(made: list[list[int]]) -> list[dict[str, Any]]:
    known: dict[tuple[int, ...], int] = {}
    return [
        {
            "chat_id": n,
            "parent_chat_id": -1,
            "timestamp": n,
            "input_length": len(ids),
            "output_length": 1,
            "turn": 1,
        }
        | {"type": "text", "hash_ids": hashed(ids, 16, known)}
        for n, ids in enumerate(made)
    ]


def mooncake(made: list[list[int]]) -> list[dict[str, Any]]:
    known: dict[tuple[int, ...], int] = {}
    return [
        {"timestamp": n, "input_length": len(ids), "output_length": 1, "hash_ids": hashed(ids, 512, known)}
        for n, ids in enumerate(made)
    ]


def shared_of(path: Path, rows: list[dict[str, Any]]) -> Int64:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace, _ = encode_trace(read_trace([str(path)]).requests, None)
    return find_shared_prefixes(trace).shared


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("write", "block"), [(bailian, 16), (mooncake, 512)])
def test_same_ideal_hits(tmp_path: Path, seed: int, write: Any, block: int) -> None:
    made = prompts(seed)
    if block == 512:
        made = [ids * 9 for ids in made]
    text = shared_of(
        tmp_path / "ids.jsonl", [{"token_ids": ids, "timestamp": n} for n, ids in enumerate(made)]
    )
    blocks = shared_of(tmp_path / "blocks.jsonl", write(made))
    assert int(text.sum()) > 0
    for unit in (block, 2 * block, 3 * block, 6 * block):
        assert np.array_equal(text // unit, blocks // unit), unit
