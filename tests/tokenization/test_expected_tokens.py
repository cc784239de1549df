"""All four public traces, to the token: lengths, shared prefixes, ideal hits, and ids equal to whole-text encoding.

Both ways of encoding, by rank and by the library; hostile texts and all code points besides.

Needs the model folder that `tests/data/build_qwen_folder.py` writes, named by KVTUNE_QWEN_MODEL.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtune.analyzers.prefix_tree import build_prefix_tree
from kvtune.tokenization.encode import encode_trace
from kvtune.tokenization.encoding.open_encoder import open_prompt_encoder
from kvtune.tokenization.encoding.prompt_encoder import PromptEncoder
from kvtune.tokenization.reading import read_trace
from kvtune.tokenization.tokenizers.vocabulary import Vocabulary

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


@pytest.fixture(scope="module", params=["auto", "library"])
def encoder(request: pytest.FixtureRequest) -> PromptEncoder:
    assert FOLDER is not None
    return open_prompt_encoder(model=Path(FOLDER), encoder=request.param)


@pytest.mark.parametrize("name", sorted(IDEAL))
def test_tokens_of_a_trace(encoder: PromptEncoder, name: str) -> None:
    expected = IDEAL[name]
    requests = read_trace([str(DATA / "traces" / f"{name}.jsonl.gz")]).requests
    trace, info = encode_trace(requests, encoder, check=20)
    assert (len(trace), len(trace.tokens)) == (expected["requests"], expected["prompt_tokens"])
    assert info.checked_requests == 20 and info.why_whole is None and not info.rejected_by

    whole = encoder.vocabulary.check_ids(
        [encoder.render(request).text for request in requests], affixed=False
    )
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


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    assert FOLDER is not None
    return open_prompt_encoder(model=Path(FOLDER)).vocabulary


def test_every_code_point_in_its_surroundings(vocabulary: Vocabulary) -> None:
    points = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    for start in range(0, len(points), 1 << 16):
        some = points[start : start + (1 << 16)]
        texts = [
            "".join(f"a{c} {c}1{c}.{c}\n'{c}'r{c}" for c in some[at : at + 8])
            for at in range(0, len(some), 8)
        ]
        for text, found, wanted in zip(
            texts, vocabulary.encode(texts), vocabulary.check_ids(texts, affixed=False), strict=True
        ):
            assert np.array_equal(found, wanted), f"among {text[1]!r} to {text[-1]!r}"


def test_hostile_texts(vocabulary: Vocabulary) -> None:
    texts = list(hostile_texts(vocabulary.decode, vocabulary.size, count=20_000))
    for text, found, wanted in zip(
        texts, vocabulary.encode(texts), vocabulary.check_ids(texts, affixed=False), strict=True
    ):
        assert np.array_equal(found, wanted), ascii(text)


def hostile_texts(decode: Any, size: int, *, count: int) -> Iterator[str]:
    """Tokens at random and cut anew, special tokens and halves of them, runs of spaces, marks and rare scripts."""
    draw = random.Random(0)
    odd = [
        "<|im_end|>",
        "<|im_",
        "end|>",
        " " * 40,
        "\n\n ",
        "\r\n",
        "\t",
        "'S",
        "'\u017f",
        "e\u0301",
        "\u0e33",
        "ﬁ",
    ]
    odd += [
        "\u1100\u1161",
        "\u200d",
        "\ufeff",
        "🏽",
        "️",
        "٣",
        "Ⅳ",
        "ǅ",
        "\x00",
        "\x85",
        "\u2028",
        "элементы",
        "สัม",
    ]
    for _ in range(count):
        parts = [
            draw.choice(odd) if draw.random() < 0.2 else decode([draw.randrange(size)]).replace("\ufffd", "")
            for _ in range(draw.randrange(1, 24))
        ]
        text = "".join(parts)
        at = draw.randrange(len(text) + 1)
        yield text[at:] + text[:at]
    for unit in ("a", " ", "\n", "ab", "\u00e9", "中", "1", "!", "aA"):
        yield unit * 20_000
