"""The fast decoder against the standard library's, and its own account of oddities."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.strict_json import MAX_DEPTH, StrictDecoder

TEXT = st.text('ab:"\\{[ é\u2028', max_size=6) | st.sampled_from(
    ['a"b', 'a\\":', '":', "x : y", "\\u0041", "\U0001f600"]
)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.sampled_from([0.5, -1e300]) | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
LONG = st.dictionaries(
    TEXT,
    VALUES | st.lists(st.dictionaries(TEXT, TEXT.map(lambda text: text * 30), max_size=3), max_size=3),
    max_size=4,
)
STYLES = st.sampled_from([(", ", ": "), (",", ":"), (" ,", " :"), (",\n", ":\t"), (", ", "  : ")])


def pairs_of(text: str) -> int:
    """How many pairs lost to a later one of the same name, by the obvious way."""
    lost = 0

    def gather(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal lost
        lost += len(pairs) - len(dict(pairs))
        return dict(pairs)

    json.loads(text, object_pairs_hook=gather)
    return lost


class Repeated(dict[str, Any]):
    """Writes some of its pairs twice."""

    def __init__(self, value: dict[str, Any], twice: int) -> None:
        super().__init__(value)
        self.twice = list(value.items())[:twice]

    def items(self) -> Any:
        return [*self.twice, *super().items()]


def with_duplicates(value: Any, draw: Any) -> Any:
    if isinstance(value, dict):
        return Repeated(
            {key: with_duplicates(inner, draw) for key, inner in value.items()}, draw(st.integers(0, 2))
        )
    if isinstance(value, list):
        return [with_duplicates(inner, draw) for inner in value]
    return value


def write(value: Any, comma: str, colon: str) -> str:
    """JSON with these separators; a `Repeated` writes its pairs as often as it says."""
    if isinstance(value, dict):
        return (
            "{"
            + comma.join(json.dumps(key) + colon + write(inner, comma, colon) for key, inner in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + comma.join(write(inner, comma, colon) for inner in value) + "]"
    return json.dumps(value)


@settings(max_examples=60)
@given(LONG, STYLES, st.booleans())
def test_same_value_as_the_standard_library(value: Any, style: tuple[str, str], padded: bool) -> None:
    if padded:
        value = value | {"padding": "p" * 2000, "tools": [{"name": "n" * 100}] * 3}
    text = write(value, *style)
    decoder = StrictDecoder()
    for _ in range(3):  # the second and third time from memory
        assert decoder.decode(text.encode()) == json.loads(text)
    assert decoder.duplicate_keys == 0


@settings(max_examples=60)
@given(st.data(), LONG, STYLES, st.booleans())
def test_duplicate_keys_are_counted_exactly(
    data: Any, value: Any, style: tuple[str, str], padded: bool
) -> None:
    if padded:
        value = value | {
            "padding": "p" * 2000,
            "messages": [{"role": "user", "content": 'said ":" ' * 20}] * 3,
        }
    text = write(with_duplicates(value, data.draw), *style)
    decoder = StrictDecoder()
    for time in range(1, 4):
        assert decoder.decode(text.encode()) == json.loads(text)
        assert decoder.duplicate_keys == time * pairs_of(text)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_give_a_value_or_a_named_error(data: bytes) -> None:
    try:
        value = StrictDecoder().decode(data)
    except RecordError as error:
        assert error.found and error.wanted
    else:
        assert json.dumps(json.loads(data)) == json.dumps(value)  # NaN is not equal to itself


@given(st.integers(1, MAX_DEPTH + 3), st.sampled_from(["[]", "{}"]), st.booleans())
def test_depth_is_judged_exactly(depth: int, kind: str, long: bool) -> None:
    opening, closing = ("[", "]") if kind == "[]" else ('{"a": ', "}")
    text = opening * (depth - 1) + kind + closing * (depth - 1)
    if long:
        text = text.replace("{}", '{"b": "' + "x" * 3000 + '"}').replace("[]", '["' + "x" * 3000 + '"]')
    if depth <= MAX_DEPTH:
        assert StrictDecoder().decode(text.encode()) == json.loads(text)
    else:
        with pytest.raises(RecordError) as caught:
            StrictDecoder().decode(text.encode())
        assert (caught.value.reason, caught.value.found) == ("nested_too_deep", f"{depth} levels")


def test_brackets_in_strings_are_no_levels() -> None:
    text = json.dumps({"a": "[" * 2000 + "{" * 2000, "b": ["\\" * 99 + '"[[']})
    assert StrictDecoder().decode(text.encode()) == json.loads(text)


def test_memory_is_bounded() -> None:
    decoder = StrictDecoder(remember_bytes=10_000)
    for number in range(200):
        decoder.decode(
            json.dumps({"messages": [{"content": f"{number}" * 200}], "padding": "p" * 900}).encode()
        )
    assert sum(map(len, decoder._parts)) <= 10_000


def test_numbers_beyond_the_interpreter_are_no_crash() -> None:
    with pytest.raises(RecordError) as caught:
        StrictDecoder().decode(b'{"n": ' + b"9" * 10_000 + b"}")
    assert caught.value.reason == "invalid_json"
