"""Rank-ordered BPE gives what BPE with merges gives, wherever `rank_order` says so: any vocabulary, any word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from kvtune.tokenization.tokenizers.line_cuts import QWEN2
from kvtune.tokenization.tokenizers.rank_order import NotProvenError, byte_letters, rank_order
from kvtune.tokenization.tokenizers.ranked_encoder import RankedEncoder

LETTERS = "abcé"
PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=24)
WORDS = st.lists(st.text(LETTERS, max_size=14), min_size=1, max_size=6)


def model_of(
    pairs: list[tuple[int, int]], *, extra: tuple[str, ...] = (), backwards: bool = False, **settings: Any
) -> Tokenizer:
    """A BPE whose n-th merge joins two of the tokens so far, and `extra` tokens that nothing makes."""
    tokens = [letter for letter in byte_letters() if letter in {*"abc", "Ã", "©"}]
    merges: list[tuple[str, str]] = []
    for a, b in pairs:
        left, right = tokens[a % len(tokens)], tokens[b % len(tokens)]
        if len(left + right) <= 12:
            merges.append((left, right))
            tokens.append(left + right)
    names = dict.fromkeys([*byte_letters(), *tokens, *extra])
    if backwards:
        merges.reverse()  # merges whose parts are made by later ones
    return finished(
        Tokenizer(
            models.BPE({token: n for n, token in enumerate(names)}, list(dict.fromkeys(merges)), **settings)
        )
    )


def finished(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return tokenizer


def ranked(tokenizer: Tokenizer) -> RankedEncoder:
    number = tokenizer.token_to_id("<|end|>")
    return RankedEncoder(rank_order(tokenizer.to_str().encode()), QWEN2, {"<|end|>": number}, workers=1)


@given(pairs=PAIRS, words=WORDS, whole=st.booleans(), backwards=st.booleans())
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
def test_any_vocabulary_gives_the_same_ids_or_none(
    pairs: list[tuple[int, int]], words: list[str], whole: bool, backwards: bool
) -> None:
    tokenizer = model_of(pairs, extra=("abcabc", "ca", "bÃ©"), backwards=backwards, ignore_merges=whole)
    try:
        encoder = ranked(tokenizer)
    except NotProvenError:
        return
    for word, ids in zip(words, encoder.encode(words), strict=True):
        assert ids is None or ids.tolist() == tokenizer.encode(word).ids


def test_a_merge_that_crosses_the_border_is_found() -> None:
    """b+c comes first: "abc" is a and bc, so that ab+c is never met and abc has no rank."""
    names = [*byte_letters(), "bc", "ab", "abc"]
    tokenizer = finished(
        Tokenizer(models.BPE({t: n for n, t in enumerate(names)}, [("b", "c"), ("a", "b"), ("ab", "c")]))
    )
    order = rank_order(tokenizer.to_str().encode())
    assert (order.certain, len(order.ids), order.avoided) == (258, 258, [])
    assert tokenizer.encode("abc").tokens == ["a", "bc"]


def test_equal_neighbours_join_from_the_left() -> None:
    names = [*byte_letters(), "aa", "aaa", "aaaa"]
    merges = [("a", "a"), ("aa", "a"), ("aa", "aa")]
    tokenizer = finished(Tokenizer(models.BPE({t: n for n, t in enumerate(names)}, merges)))
    texts = ["a" * count for count in range(1, 40)]
    assert [ids.tolist() for ids in ranked(tokenizer).encode(texts) if ids is not None] == [
        tokenizer.encode(text).ids for text in texts
    ]


def test_equal_neighbours_across_the_border_join_before_those_behind_it() -> None:
    """ "aaa" is aa and a, from the left: a+aa is never met, and aaa has no rank."""
    names = [*byte_letters(), "aa", "aaa"]
    merges = [("a", "a"), ("a", "aa")]
    tokenizer = finished(Tokenizer(models.BPE({t: n for n, t in enumerate(names)}, merges)))
    order = rank_order(tokenizer.to_str().encode())
    assert (order.certain, order.avoided) == (257, [])
    assert tokenizer.encode("aaa").tokens == ["aa", "a"]


def test_a_whole_word_that_no_merge_makes_is_left_to_the_library() -> None:
    tokenizer = model_of([(0, 1)], extra=("abcabc",), ignore_merges=True)
    found = ranked(tokenizer).encode(["abcabc", "abcab", "x<|end|>y"])
    assert [ids is None for ids in found] == [True, False, False]
    assert found[2] is not None and found[2].tolist() == tokenizer.encode("x<|end|>y").ids


def test_a_merge_of_parts_that_come_later_is_avoided() -> None:
    """abc = ab+c is the first merge, ab the second: "abc" is made out of turn, and ranks do not say when."""
    names = [*byte_letters(), "ab", "abc"]
    tokenizer = finished(
        Tokenizer(models.BPE({t: n for n, t in enumerate(names)}, [("ab", "c"), ("a", "b")]))
    )
    assert rank_order(tokenizer.to_str().encode()).avoided == ["abc"]
    found = ranked(tokenizer).encode(["xabcx", "ab c", "ab", "xabcx"])
    assert [ids is None for ids in found] == [True, False, False, True]


@pytest.mark.parametrize(
    "change",
    [
        {"dropout": 0.1},
        {"end_of_word_suffix": "</w>"},
        {"continuing_subword_prefix": "##"},
        {"byte_fallback": True},
        {"type": "WordPiece"},
        {"vocab": {"a": 0}},
        {"merges": 7},
    ],
)
def test_other_models_are_not_proven(change: dict[str, Any]) -> None:
    file = json.loads(model_of([(0, 1)]).to_str())
    file["model"] |= change
    with pytest.raises(NotProvenError):
        rank_order(json.dumps(file).encode())


def test_the_real_tokenizer_of_the_sample_is_proven() -> None:
    path = Path(__file__).parents[3] / "samples" / "tiny-hybrid" / "tokenizer.json"
    order = rank_order(path.read_bytes())
    assert order.certain == len(order.ids) > 5000 and not order.avoided
