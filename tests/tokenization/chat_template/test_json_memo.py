"""The memory of dumps: right for the object that it was made for, and bounded."""

from __future__ import annotations

import pytest

from kvtune.tokenization.chat_template import json_memo
from kvtune.tokenization.chat_template.json_memo import JsonMemo


def test_only_kept_objects_are_remembered_by_identity_and_options() -> None:
    memo = JsonMemo()
    kept, equal = {"a": 1}, {"a": 1}
    memo.keep(kept)
    memo.put(kept, ("x",), "text")
    memo.put(equal, ("x",), "other")
    assert memo.get(kept, ("x",)) == "text"
    assert memo.get(kept, ("y",)) is None
    assert memo.get(equal, ("x",)) is None


def test_what_one_rendering_wrote_is_told_whether_it_is_remembered_or_not() -> None:
    memo = JsonMemo()
    kept, other, unwritten = {"a": 1}, {"b": 2}, {"c": 3}
    memo.keep(kept)
    for dump in ("put", "get"):
        memo.begin()
        memo.put(other, (), "other")
        if dump == "put":
            memo.put(kept, (), "text")
        assert memo.get(kept, ()) == "text"
        assert memo.texts_of([kept, unwritten, other]) == ["text", "other"]
    memo.begin()
    assert memo.texts_of([kept, other]) == []


def test_both_the_texts_and_the_objects_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_memo, "_MAX_CHARS", 10)
    monkeypatch.setattr(json_memo, "_MAX_KEPT", 3)
    memo = JsonMemo()
    first = {"n": 0}
    memo.keep(first)
    memo.put(first, (), "12345")
    assert memo.get(first, ()) == "12345"
    memo.put(first, (1,), "123456")
    assert memo.get(first, ()) is None, "too many characters: all forgotten"
    objects = [{"n": number} for number in range(4)]
    for one in objects:
        memo.keep(one)
        memo.put(one, (), "1")
    assert [memo.get(one, ()) for one in objects] == [None, None, None, "1"]
