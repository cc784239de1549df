"""Pieces: the ids of a text cut up are those of the whole, on any text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from kvtune.tokenization.tokenizers import pieces as pieces_module
from kvtune.tokenization.tokenizers.huggingface import HuggingFaceVocabulary
from kvtune.tokenization.tokenizers.line_cuts import BEFORE, PATTERNS, lines_of
from kvtune.tokenization.tokenizers.pieces import PieceEncoder, SurrogateError, joined
from kvtune.tokenization.tokenizers.vocabulary import Vocabulary
from kvtune.tokenization.trace import UInt32
from tests.tokenization.tokenizers.conftest import build

FRAGMENTS = [
    *["<|start|>", "<|end|>", "<|image|>", "<|en", "d|>", "<"],
    *["\n", "\n\n", "\r\n", "\r", " ", "  ", "\t", "\u00a0", "\u2028", "\u3000", "\x0b"],
    *["a", "Z", "the", "can't", "'S", "1", "2024", "/", "//", "#", "- ", ".", "...", "{", '"'],
    *[
        "é",
        "e\u0301",
        "\u0301",
        "\u0327\u0301",
        "ﬁ",
        "北",
        "한",
        "\u1100\u1161",
        "\U0001f600",
        "\ufeff",
        "\u200d",
    ],
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=60).map("".join)
RELAXED = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def short_texts_are_cut_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtune.tokenization.tokenizers.line_cuts._MIN_CHARS", 0)


def in_pieces(vocabulary: Vocabulary, texts: list[str]) -> list[list[int]]:
    encoder = PieceEncoder(vocabulary)
    rows = []
    for number, text in enumerate(texts):
        rows.append(encoder.cut(text))
        if number % 3 == 2:
            encoder.submit()
    encoder.submit()
    encoder.wait()
    encoder.close()
    return [joined(row, encoder.separator_ids).tolist() for row in rows]


def vocabulary_of(tokenizer: Tokenizer, folder: Path) -> HuggingFaceVocabulary:
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return HuggingFaceVocabulary(path)


@pytest.fixture(scope="module", params=sorted(PATTERNS), ids=["a", "b", "c", "d", "e"])
def by_pattern(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> HuggingFaceVocabulary:
    return vocabulary_of(build(request.param), tmp_path_factory.mktemp("pattern"))


@given(texts=st.lists(TEXTS, min_size=1, max_size=5))
@RELAXED
def test_lines_and_special_tokens_cut_exactly(by_pattern: HuggingFaceVocabulary, texts: list[str]) -> None:
    assert by_pattern.cuts.lines
    assert in_pieces(by_pattern, texts) == [ids.tolist() for ids in by_pattern.encode(texts)]


@given(text=st.text(max_size=200))
@RELAXED
def test_any_unicode_text_cuts_exactly(by_pattern: HuggingFaceVocabulary, text: str) -> None:
    if any(0xD800 <= ord(character) < 0xE000 for character in text):
        with pytest.raises(SurrogateError):
            in_pieces(by_pattern, [text])
    else:
        assert in_pieces(by_pattern, [text]) == [ids.tolist() for ids in by_pattern.encode([text])]


UNSAFE = {
    "Metaspace": {"pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="first")},
    "prepend": {"normalizer": normalizers.Prepend("x")},
    "strip": {"normalizer": normalizers.Strip()},
    "prefix space": {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
    "lstrip": {"specials": (AddedToken("<|end|>", special=True, normalized=False, lstrip=True),)},
    "rstrip": {"specials": (AddedToken("<|end|>", special=True, normalized=False, rstrip=True),)},
    "single word": {"specials": (AddedToken("<|end|>", special=True, normalized=False, single_word=True),)},
    "lower case": {"normalizer": normalizers.Lowercase()},
}


@pytest.fixture(scope="module", params=UNSAFE, ids=list(UNSAFE))
def peculiar(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> HuggingFaceVocabulary:
    return vocabulary_of(build(**UNSAFE[request.param]), tmp_path_factory.mktemp("peculiar"))


@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
@RELAXED
def test_peculiar_tokenizers_are_exact_too(peculiar: HuggingFaceVocabulary, texts: list[str]) -> None:
    assert in_pieces(peculiar, texts) == [ids.tolist() for ids in peculiar.encode(texts)]


@given(text=TEXTS)
@RELAXED
def test_lines_put_together_are_the_text_and_begin_after_newlines(text: str) -> None:
    lines = lines_of(text)
    assert "".join(lines) == text
    assert all(line[-1] == "\n" for line in lines[:-1])
    assert all(line[0] in BEFORE for line in lines[1:])


class CountingVocabulary:
    """Counts what it is asked to encode; one id per character."""

    kind = "hf"
    source = "test"
    size = 1 << 21
    affixes = None

    def __init__(self, cuts: object) -> None:
        self.cuts = cuts
        self.special_tokens: dict[str, int] = {}
        self.asked: list[str] = []

    def encode(self, texts: list[str]) -> list[UInt32]:
        self.asked += texts
        return [np.array([ord(character) for character in text], dtype=np.uint32) for text in texts]


@pytest.fixture
def counting(tmp_path: Path) -> CountingVocabulary:
    return CountingVocabulary(vocabulary_of(build(sorted(PATTERNS)[0]), tmp_path).cuts)


def test_each_distinct_piece_is_encoded_once(counting: CountingVocabulary) -> None:
    in_pieces(counting, ["a\nb<|end|>c", "a\nd<|end|>c", "a\nb<|end|>e"] * 2)  # type: ignore[arg-type]
    assert sorted(counting.asked) == ["a\n", "b", "c", "d", "e"]


def test_the_memory_is_bounded(counting: CountingVocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "MEMORY_BYTES", 100)
    texts = [f"text number {number}<|end|>more of it" for number in range(50)]
    rows = in_pieces(counting, texts)  # type: ignore[arg-type]
    assert len(counting.asked) > 51, "some pieces were forgotten and encoded again"
    ids = counting.cuts.tokens["<|end|>"]  # type: ignore[attr-defined]
    assert rows == [
        [*map(ord, left), ids, *map(ord, right)] for left, right in (t.split("<|end|>") for t in texts)
    ]


def test_the_separator_is_the_token_that_cuts_most(counting: CountingVocabulary) -> None:
    encoder = PieceEncoder(counting)  # type: ignore[arg-type]
    encoder.cut("no special token here")
    assert encoder.separator is None
    encoder.cut("<|start|>a<|end|><|end|>")
    assert encoder.separator == "<|end|>"
    encoder.close()


def test_half_a_surrogate_pair_is_refused_and_the_rest_goes_on(counting: CountingVocabulary) -> None:
    encoder = PieceEncoder(counting)  # type: ignore[arg-type]
    with pytest.raises(SurrogateError, match="half a surrogate pair"):
        encoder.cut("a\ud800b<|end|>")
    row = encoder.cut("fine")
    encoder.submit()
    encoder.wait()
    encoder.close()
    assert joined(row, encoder.separator_ids).tolist() == [ord(character) for character in "fine"]


def test_callbacks_see_every_earlier_batch_done(counting: CountingVocabulary) -> None:
    encoder = PieceEncoder(counting)  # type: ignore[arg-type]
    done: list[Callable[[], object]] = []
    first = encoder.cut("one")
    encoder.submit()
    encoder.cut("two")
    encoder.submit(lambda: done.append(first[0].resolve))
    assert done[0]() is not None
    encoder.close()
