"""The library in a process of its own: the same answers, and none missed where that process is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from kvtune.tokenization import cache
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.tokenizers.huggingface import HuggingFaceVocabulary
from kvtune.tokenization.tokenizers.library import Library
from kvtune.tokenization.tokenizers.line_cuts import CL100K
from tests.tokenization.tokenizers.conftest import build, with_bos

TEXTS = ["The quick brown fox", "it's <|end|> 北京", ""]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file for which a process is worth it, and an empty cache."""
    monkeypatch.setattr("kvtune.tokenization.tokenizers.library.WORTH_A_WORKER_BYTES", 0)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tokenizer: Tokenizer = build(CL100K, post_processor=with_bos())
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def never(*_: object) -> None:
    raise AssertionError("loaded in this process")


@pytest.mark.parametrize("affixed", [False, True])
def test_it_checks_without_loading_anything_here(
    path: Path, monkeypatch: pytest.MonkeyPatch, affixed: bool
) -> None:
    here = HuggingFaceVocabulary(path, by_rank=False).check_ids(TEXTS, affixed=affixed)
    cache.clear()
    monkeypatch.setattr("kvtune.tokenization.tokenizers.library.load_tokenizer", never)
    for _ in range(2):  # found out anew, then as it was kept
        vocabulary = HuggingFaceVocabulary(path, checked=True)
        again = vocabulary.check_ids(TEXTS, affixed=affixed)
        vocabulary.end_checks()
        assert [ids.tolist() for ids in again] == [ids.tolist() for ids in here]


def test_where_it_is_lost_the_library_is_loaded_here(path: Path) -> None:
    vocabulary = HuggingFaceVocabulary(path, checked=True)
    worker = vocabulary._library._worker
    assert worker is not None
    worker.end()
    ids = [ids.tolist() for ids in vocabulary.check_ids(TEXTS, affixed=False)]
    assert ids == [ids.tolist() for ids in vocabulary.encode(TEXTS)]


def test_a_file_that_is_no_tokenizer_is_told_of_here(path: Path) -> None:
    path.write_text('{"model": 7}')
    with pytest.raises(UnusableInputError, match="cannot be loaded as a tokenizer"):
        HuggingFaceVocabulary(path, checked=True)


def test_what_only_the_library_encodes_is_not_sent_there(path: Path) -> None:
    build(r"\s+|\S+").save(str(path))
    vocabulary = HuggingFaceVocabulary(path, checked=True)
    assert [ids.tolist() for ids in vocabulary.encode(TEXTS)] and vocabulary._library._worker is None


def test_it_begins_again_where_it_is_needed_again(path: Path) -> None:
    library = Library(path, {}, beside=True)
    first = [ids.tolist() for ids in library.encode(TEXTS, affixes=False)]
    library.end()
    assert [ids.tolist() for ids in library.encode(TEXTS, affixes=False)] == first
    assert "tokenizer" not in vars(library)
    library.end()


def test_with_one_worker_there_is_no_other_process(path: Path) -> None:
    vocabulary = HuggingFaceVocabulary(path, checked=True, workers=1)
    assert vocabulary.check_ids(TEXTS, affixed=False) and vocabulary._library._worker is None
