"""`tokenizer.json`: where texts may be cut, BOS and EOS, token ends, bad files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers, processors

from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.tokenizers.huggingface import HuggingFaceVocabulary
from kvtune.tokenization.tokenizers.line_cuts import CL100K, PATTERNS
from tests.tokenization.tokenizers.conftest import SPECIALS, build, with_bos

Save = Callable[[Tokenizer], Path]


def token(text: str, **flags: bool) -> AddedToken:
    return AddedToken(text, **{"special": True, "normalized": False, **flags})


class TestCutRules:
    def test_plain_special_tokens_cut_and_known_patterns_cut_lines(self, saved: Save) -> None:
        rules = HuggingFaceVocabulary(saved(build(CL100K))).cuts
        assert rules.tokens == {"<|start|>": 300, "<|end|>": 301, "<|image|>": 302}
        assert rules.lines and rules.why_whole is None

    def test_other_patterns_cut_at_special_tokens_only(self, saved: Save) -> None:
        rules = HuggingFaceVocabulary(saved(build(r"\s+|\S+"))).cuts
        assert list(rules.tokens) == list(SPECIALS) and not rules.lines

    @pytest.mark.parametrize(
        "normalizer", [normalizers.Lowercase(), normalizers.Replace("\n", " "), normalizers.StripAccents()]
    )
    def test_a_normalizer_that_changes_texts_keeps_lines_whole(self, saved: Save, normalizer: Any) -> None:
        rules = HuggingFaceVocabulary(saved(build(CL100K, normalizer=normalizer))).cuts
        assert rules.tokens and not rules.lines

    @pytest.mark.parametrize(
        ("parts", "why"),
        [
            ({"normalizer": normalizers.Prepend("▁")}, "normalizer Prepend"),
            (
                {"normalizer": normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])},
                "normalizer Strip",
            ),
            ({"pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="first")}, "Metaspace with a prefix"),
            ({"pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="always")}, "Metaspace with a prefix"),
            ({"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)}, "ByteLevel with a prefix"),
            ({"specials": (token("<|end|>", single_word=True),)}, "stand alone as a word"),
            ({"specials": (token("<|end|>", lstrip=True),)}, "no special token that stands for itself"),
            ({"specials": (token("<|end|>", rstrip=True),)}, "no special token that stands for itself"),
            ({"specials": (token("<|end|>", normalized=True),)}, "no special token that stands for itself"),
            ({"specials": ()}, "no special token that stands for itself"),
        ],
    )
    def test_what_looks_around_is_encoded_whole(self, saved: Save, parts: dict[str, Any], why: str) -> None:
        rules = HuggingFaceVocabulary(saved(build(CL100K, **parts))).cuts
        assert rules.tokens == {} and not rules.lines
        assert rules.why_whole is not None and why in rules.why_whole

    def test_a_token_that_strips_beside_others_keeps_lines_whole(self, saved: Save) -> None:
        specials = (token("<|start|>"), token("<mask>", lstrip=True))
        rules = HuggingFaceVocabulary(saved(build(CL100K, specials=specials))).cuts
        assert list(rules.tokens) == ["<|start|>"] and not rules.lines

    @pytest.mark.parametrize(
        ("others", "safe"),
        [
            (("<a>",), ["<a>"]),
            (("<a>", "x<a>"), ["x<a>"]),  # the longer one takes the shorter one's place
            (("<a>", "x<"), ["x<"]),  # "x<a>" is "x<" and then "a>"
            (("<a>", ">b"), ["<a>"]),  # "<a>b" is "<a>", which begins first
        ],
    )
    def test_tokens_that_another_could_claim_do_not_cut(
        self, saved: Save, others: tuple[str, ...], safe: list[str]
    ) -> None:
        vocabulary = HuggingFaceVocabulary(
            saved(build(CL100K, specials=tuple(token(text) for text in others)))
        )
        assert sorted(vocabulary.cuts.tokens) == sorted(safe)


class TestAffixes:
    def test_completions_get_one_bos_and_chats_none(self, saved: Save) -> None:
        vocabulary = HuggingFaceVocabulary(saved(build(post_processor=with_bos())))
        plain = vocabulary.encode(["hello"])[0].tolist()
        assert vocabulary.encode_with_affixes(["hello"])[0].tolist() == [300, *plain]
        assert 300 not in plain

    @pytest.mark.parametrize(
        ("flag", "expected"), [((None, None), [300]), ((False, "<|start|>"), []), ((True, "<|end|>"), [301])]
    )
    def test_the_configuration_s_flag_overrules_the_file(
        self, saved: Save, flag: tuple[bool | None, str | None], expected: list[int]
    ) -> None:
        vocabulary = HuggingFaceVocabulary(saved(build(post_processor=with_bos())), add_bos_token=flag)
        assert vocabulary.affixes is not None
        assert vocabulary.affixes[0].tolist() == expected

    def test_an_eos_goes_behind(self, saved: Save) -> None:
        template = processors.TemplateProcessing(
            single="<|start|> $A <|end|>", special_tokens=[("<|start|>", 300), ("<|end|>", 301)]
        )
        both = processors.Sequence([processors.ByteLevel(), template])
        vocabulary = HuggingFaceVocabulary(saved(build(post_processor=both)))
        text = "hello <|image|> world"
        whole = build(post_processor=both).encode(text).ids
        assert vocabulary.encode_with_affixes([text])[0].tolist() == whole
        assert whole[0] == 300 and whole[-1] == 301

    def test_an_unknown_kind_of_post_processor_is_left_to_the_library(self, saved: Save) -> None:
        roberta = processors.RobertaProcessing(("<|end|>", 301), ("<|start|>", 300))
        vocabulary = HuggingFaceVocabulary(saved(build(post_processor=roberta)))
        assert vocabulary.affixes is None
        assert vocabulary.encode_with_affixes(["hello"])[0].tolist()[0] == 300


class TestAddedTokens:
    """Tokens that only `tokenizer_config.json` knows are added behind, in the order of their ids."""

    def test_missing_ones_are_added_and_others_left(self, saved: Save) -> None:
        config = {
            "304": {"content": "<b>", "special": True, "normalized": False},
            "303": {"content": "<a>", "special": True, "normalized": False},
            "301": {"content": "<|end|>", "special": True, "normalized": False},
            "x": {"content": "<ignored>"},
            "305": "no token",
        }
        vocabulary = HuggingFaceVocabulary(saved(build(CL100K)), added_tokens=config)
        assert vocabulary.encode(["<a><b><|end|>"])[0].tolist() == [303, 304, 301]
        assert vocabulary.size == 305
        assert {"<a>", "<b>"} <= set(vocabulary.cuts.tokens)


class TestTokenEnds:
    @pytest.mark.parametrize("text", ["hello world", "café\n\n北京 <|end|> it's", ""])
    def test_ends_are_bytes_of_the_text_and_the_last_is_its_length(self, saved: Save, text: str) -> None:
        vocabulary = HuggingFaceVocabulary(saved(build(CL100K)))
        ids = vocabulary.encode([text])[0]
        ends = vocabulary.token_ends([text], [ids])[0]
        assert len(ends) == len(ids)
        assert (np.diff(ends) >= 0).all()
        if text:
            assert ends[-1] == len(text.encode())

    def test_a_normalized_text_keeps_its_own_bytes(self, saved: Save) -> None:
        vocabulary = HuggingFaceVocabulary(saved(build(CL100K)))
        text = "e\u0301 <|end|>!"  # the first letter is composed, three bytes become two
        ends = vocabulary.token_ends([text], vocabulary.encode([text]))[0]
        assert ends[-2:].tolist() == [len(text.encode()) - 1, len(text.encode())]

    def test_ascii_tokens_end_where_their_text_does(self, saved: Save) -> None:
        vocabulary = HuggingFaceVocabulary(saved(build(CL100K)))
        text = "the quick <|end|>\nbrown"
        encoding = Tokenizer.from_file(vocabulary.source).encode(text)
        assert vocabulary.token_ends([text], vocabulary.encode([text]))[0].tolist() == [
            end for _, end in encoding.offsets
        ]


def test_every_known_pattern_is_a_pattern_the_library_takes(saved: Save) -> None:
    for pattern in PATTERNS:
        assert HuggingFaceVocabulary(saved(build(pattern))).cuts.lines


def test_truncation_and_padding_of_the_file_do_not_count(saved: Save) -> None:
    tokenizer = build()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=99)
    ids = HuggingFaceVocabulary(saved(tokenizer)).encode(["the quick brown fox jumps"])[0]
    assert 2 < len(ids) < 99


@pytest.mark.parametrize("content", ["", "{}", '{"model": 7}', "\x00\x01"])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(
        UnusableInputError, match=r"tokenizer.json: cannot be loaded as a tokenizer"
    ) as caught:
        HuggingFaceVocabulary(path)
    assert "\n" not in str(caught.value)
