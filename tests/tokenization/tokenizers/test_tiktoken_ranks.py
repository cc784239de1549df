"""Vocabularies of ranks: files, cache folders, names, and the same exactness."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.tokenizers.pieces import PieceEncoder, joined
from kvtune.tokenization.tokenizers.tiktoken_ranks import TiktokenVocabulary, named_encoding, ranks_file

MERGES = [b"th", b"the", b" the", b"in", b"ing", b"\n\n", b"  ", b"er", b" a", b"an", b"and", b" and"]
RANKS = [bytes([byte]) for byte in range(256)] + MERGES
CL100K_CACHE_KEY = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"


def write_ranks(path: Path) -> Path:
    lines = [base64.b64encode(token) + b" " + str(rank).encode() for rank, token in enumerate(RANKS)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> TiktokenVocabulary:
    return ranks_file(write_ranks(tmp_path_factory.mktemp("ranks") / "cl100k_base.tiktoken"), workers=2)


def test_special_tokens_are_recognised_and_none_is_added(vocabulary: TiktokenVocabulary) -> None:
    ids = vocabulary.encode(["the<|endoftext|>"])[0].tolist()
    assert ids == [RANKS.index(b"the"), 100257]
    assert vocabulary.encode_with_affixes(["the"])[0].tolist() == [RANKS.index(b"the")]
    assert vocabulary.size == 100277


def test_many_texts_keep_their_order(vocabulary: TiktokenVocabulary) -> None:
    texts = [f"the {number}" for number in range(300)]
    assert [ids.tolist() for ids in vocabulary.encode(texts)] == [
        vocabulary.encode([text])[0].tolist() for text in texts
    ]


def test_tokens_end_where_their_bytes_do(vocabulary: TiktokenVocabulary) -> None:
    text = "the café\n\n<|endoftext|>and"
    ends = vocabulary.token_ends([text], vocabulary.encode([text]))[0].tolist()
    assert ends[0] == 3 and ends[-1] == len(text.encode())


@given(
    text=st.lists(
        st.sampled_from(
            ["<|endoftext|>", "<|endofprompt|>", "\n", "\n\n", " ", "\t", "/", "the", "7", "é", "'s", "#"]
        ),
        max_size=120,
    ).map("".join)
)
@settings(max_examples=150, deadline=None)
def test_cutting_is_exact(vocabulary: TiktokenVocabulary, text: str) -> None:
    encoder = PieceEncoder(vocabulary)
    row = encoder.cut(text)
    encoder.submit()
    encoder.wait()
    encoder.close()
    assert joined(row, encoder.separator_ids).tolist() == vocabulary.encode([text])[0].tolist()


def test_a_cache_folder_is_read_by_its_keys(tmp_path: Path) -> None:
    write_ranks(tmp_path / CL100K_CACHE_KEY)
    assert ranks_file(tmp_path).special_tokens["<|endofprompt|>"] == 100276


def test_a_folder_without_ranks_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnusableInputError, match="found 0 files of ranks, wanted one"):
        ranks_file(tmp_path)


def test_a_file_whose_name_says_nothing_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(
        UnusableInputError, match=r"does not say how to split words.*cl100k_base.*rename the file"
    ):
        ranks_file(write_ranks(tmp_path / "mine.tiktoken"))


@pytest.mark.parametrize("line", ["AA==", "not base64! 3", "AA== x", "AA== 1 2"])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "o200k_base.tiktoken"
    path.write_text(f"AQ== 0\n\n{line}\n")
    with pytest.raises(UnusableInputError, match=r"o200k_base.tiktoken:3: not a line of ranks"):
        ranks_file(path)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnusableInputError, match=r"unknown tiktoken name.*cl100k_base"):
        named_encoding("no-such-encoding")


def test_a_name_whose_ranks_are_not_at_hand_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import requests
    import tiktoken.registry

    def unreachable(*_args: object, **_kwargs: object) -> None:
        raise requests.exceptions.ConnectionError

    monkeypatch.setattr(requests, "get", unreachable)
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(UnusableInputError, match=r"not at hand.*TIKTOKEN_CACHE_DIR"):
        named_encoding("o200k_base")
