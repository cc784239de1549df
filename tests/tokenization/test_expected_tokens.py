"""All four public traces, to the token: lengths, shared prefixes, ideal hits, and ids equal to whole-text encoding.

Needs the model folder that `tests/data/build_qwen_folder.py` writes, named by KVTUNE_QWEN_MODEL.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtune.analyzers.prefix_tree import build_prefix_tree
from kvtune.tokenization.encode import encode_trace
from kvtune.tokenization.encoding.open_encoder import open_prompt_encoder
from kvtune.tokenization.encoding.prompt_encoder import PromptEncoder
from kvtune.tokenization.reading import read_trace

DATA = Path(__file__).resolve().parents[1] / "data"
FOLDER = os.environ.get("KVTUNE_QWEN_MODEL")
IDEAL: dict[str, Any] = json.loads((DATA / "expected" / "ideal.json").read_text())

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        FOLDER is None,
        reason="KVTUNE_QWEN_MODEL does not name a folder made by tests/data/build_qwen_folder.py",
    ),
]


@pytest.fixture(scope="module")
def encoder() -> PromptEncoder:
    assert FOLDER is not None
    return open_prompt_encoder(model=Path(FOLDER))


@pytest.mark.parametrize("name", sorted(IDEAL))
def test_tokens_of_a_trace(encoder: PromptEncoder, name: str) -> None:
    expected = IDEAL[name]
    requests = read_trace([str(DATA / "traces" / f"{name}.jsonl.gz")]).requests
    trace, info = encode_trace(requests, encoder, check=20)
    assert (len(trace), len(trace.tokens)) == (expected["requests"], expected["prompt_tokens"])
    assert info.checked_requests == 20 and info.why_whole is None and not info.rejected_by

    whole = encoder.vocabulary.encode([encoder.render(request).text for request in requests])
    for number, ids in enumerate(whole):
        assert np.array_equal(trace.prompt(number), ids), f"request {number}"
    del whole

    lengths = np.diff(trace.offsets)
    tree = build_prefix_tree(trace.tokens, trace.offsets, trace.namespace)
    shared = np.minimum(tree.shared, lengths - 1)
    lines = lengths.astype("<i8").tobytes() + shared.astype("<i8").tobytes()
    assert hashlib.sha256(lines).hexdigest() == expected["sha256_lengths"]
    assert int(shared.sum()) == expected["shared_tokens"]
    assert int((shared > 0).sum()) == expected["requests_sharing"]
    for unit, hits in expected["ideal_hit_tokens"].items():
        assert int((shared // int(unit) * int(unit)).sum()) == hits
    for kind, counts in expected["histogram"].items():
        _, modulo, _, _, width = kind.split("_")
        ends = shared[shared > 0] % int(modulo) // int(width)
        assert np.bincount(ends, minlength=len(counts)).tolist() == counts
