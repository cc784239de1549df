"""A `tokenizer.json` by rank and by its library: equal ids, what is left to the library, what is kept between runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers

from kvtune.tokenization import cache
from kvtune.tokenization.tokenizers import compiled
from kvtune.tokenization.tokenizers.code_points import disputed_of
from kvtune.tokenization.tokenizers.huggingface import HuggingFaceVocabulary
from kvtune.tokenization.tokenizers.line_cuts import CL100K, O200K, PATTERNS
from tests.tokenization.tokenizers.conftest import build
from tests.tokenization.tokenizers.test_pieces import TEXTS

Save = Callable[[Tokenizer], Path]
RELAXED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module", params=sorted(PATTERNS), ids=["a", "b", "c", "d", "e"])
def vocabulary(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> HuggingFaceVocabulary:
    path = tmp_path_factory.mktemp("pattern") / "tokenizer.json"
    build(request.param).save(str(path))
    return HuggingFaceVocabulary(path)


def both(vocabulary: HuggingFaceVocabulary, texts: list[str]) -> list[tuple[list[int], list[int]]]:
    again = vocabulary.check_ids(texts, affixed=False)
    return [(a.tolist(), b.tolist()) for a, b in zip(vocabulary.encode(texts), again, strict=True)]


@given(texts=st.lists(st.one_of(TEXTS, st.text(max_size=40)), min_size=1, max_size=8))
@RELAXED
def test_any_text_gives_the_library_s_ids(vocabulary: HuggingFaceVocabulary, texts: list[str]) -> None:
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]  # without half surrogate pairs
    assert all(a == b for a, b in both(vocabulary, texts))


@pytest.mark.slow
def test_every_code_point_in_its_surroundings(vocabulary: HuggingFaceVocabulary) -> None:
    points = [chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000]
    texts = [
        "".join(f"a{c} {c}1{c}.{c}\n'{c}'r{c}A{c}" for c in points[at : at + 8])
        for at in range(0, len(points), 8)
    ]
    for text, (found, wanted) in zip(texts, both(vocabulary, texts), strict=True):
        assert found == wanted, f"among {text[1]!r} to {text[-1]!r}"


def test_the_characters_of_common_scripts_are_agreed_on() -> None:
    ranges = [(0x20, 0x17E), (0x391, 0x3A2), (0x410, 0x450), (0x5D0, 0x5EB), (0x621, 0x64B), (0x4E00, 0x9FA6)]
    ranges += [(0x3041, 0x3097), (0xAC00, 0xD7A4), (0x1F300, 0x1F650), (0x905, 0x93A), (0xE01, 0xE3B)]
    assert disputed_of("".join(chr(code) for first, end in ranges for code in range(first, end))) == set()


def test_half_a_surrogate_pair_is_disputed() -> None:
    assert disputed_of("a\ud800é") == {"\ud800"}


class TestWhatIsLeftToTheLibrary:
    @pytest.mark.parametrize(
        ("parts", "why"),
        [
            ({"normalizer": normalizers.Lowercase()}, "normalizer"),
            ({"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False)}, "pattern"),
            ({"specials": (AddedToken("<e>", normalized=False, lstrip=True),)}, "surroundings"),
            ({"specials": (AddedToken("<e>", normalized=True),)}, "surroundings"),
            ({"specials": ()}, "found in another"),
            (
                {"specials": tuple(AddedToken(t, normalized=False) for t in ("<e>", "x<e>"))},
                "found in another",
            ),
        ],
    )
    def test_other_tokenizers(self, saved: Save, parts: dict[str, Any], why: str) -> None:
        path = saved(build(CL100K, **parts))
        vocabulary = HuggingFaceVocabulary(path)
        kept = compiled.recall(compiled.key_of(path.read_bytes(), {}))
        assert kept is not None and kept.order is None and why in (kept.why_not or "")
        assert all(a == b for a, b in both(vocabulary, ["The quick <e> fox", "x<e>", ""]))

    @pytest.mark.parametrize("text", ["e\u0301", "\u1100\u1161", " " * 1_000_000 + "x", "plain"])
    def test_texts_that_normalization_changes_and_runs_without_end(self, saved: Save, text: str) -> None:
        vocabulary = HuggingFaceVocabulary(saved(build(O200K)))
        assert all(a == b for a, b in both(vocabulary, [text, "and another"]))


class TestWhatIsKept:
    def test_the_second_time_nothing_is_loaded(self, saved: Save, monkeypatch: pytest.MonkeyPatch) -> None:
        path = saved(build(CL100K))
        first = HuggingFaceVocabulary(path)

        def refuse(*_: object) -> None:
            raise AssertionError("the library was loaded")

        monkeypatch.setattr("kvtune.tokenization.tokenizers.library.load_tokenizer", refuse)
        second = HuggingFaceVocabulary(path)
        texts = ["The quick brown <|end|> fox", "it's 1234"]
        for a, b in zip(first.encode(texts), second.encode(texts), strict=True):
            assert a.tolist() == b.tolist()
        assert (second.size, second.cuts, second.special_tokens) == (
            first.size,
            first.cuts,
            first.special_tokens,
        )
        ids = second.encode(texts)
        assert [ends[-1] for ends in second.token_ends(texts, ids)] == [len(text) for text in texts]

    def test_another_file_or_other_added_tokens_are_found_out_anew(self, saved: Save) -> None:
        path = saved(build(CL100K))
        data = path.read_bytes()
        keys = {
            compiled.key_of(data, {}),
            compiled.key_of(data + b"\n", {}),
            compiled.key_of(data, {"303": {"content": "<a>"}}),
        }
        assert len(keys) == 3

    def test_what_cannot_be_used_is_made_anew(self, saved: Save) -> None:
        path = saved(build(CL100K))
        key = compiled.key_of(path.read_bytes(), {})
        cache.keep("vocabularies", key, b"no MessagePack")
        assert HuggingFaceVocabulary(path).encode(["the quick"])[0].size
        assert compiled.recall(key) is not None

    def test_the_long_way_needs_no_cache(self, saved: Save) -> None:
        path = saved(build(O200K, specials=(AddedToken("<|only here|>", normalized=False),)))
        HuggingFaceVocabulary(path, by_rank=False)
        assert compiled.recall(compiled.key_of(path.read_bytes(), {})) is None


class TestDecoding:
    TEXTS = ("The quick <|end|> brown", "北京 café \U0001f600\n", "<｜b｜>", "")

    def test_by_rank_as_by_the_library(self, saved: Save, monkeypatch: pytest.MonkeyPatch) -> None:
        specials = tuple(AddedToken(text, normalized=False) for text in ("<|end|>", "<｜b｜>"))
        tokenizer = build(CL100K, specials=specials)
        tokenizer.decoder = decoders.ByteLevel()
        path = saved(tokenizer)
        library = HuggingFaceVocabulary(path, by_rank=False)
        rows = [ids.tolist() for ids in library.encode(self.TEXTS)]
        rows += [row[1:-1] for row in rows] + [list(range(library.size)), [5, 10**6, 7]]
        wanted = [library.decode(row) for row in rows]
        HuggingFaceVocabulary(path)
        monkeypatch.setattr("kvtune.tokenization.tokenizers.library.load_tokenizer", None)
        assert [HuggingFaceVocabulary(path).decode(row) for row in rows] == wanted

    def test_another_decoder_is_the_library_s(self, saved: Save) -> None:
        tokenizer = build(CL100K)
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("quick", "slow")])
        vocabulary = HuggingFaceVocabulary(saved(tokenizer))
        assert vocabulary.decode(vocabulary.encode(["The quick fox"])[0].tolist()) == tokenizer.decode(
            tokenizer.encode("The quick fox").ids
        )
