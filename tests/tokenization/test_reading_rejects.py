"""What a reader must refuse, one record at a time: named, counted, kept whole, and everything else goes on."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kvtune.tokenization.errors import NoUsableRequestError, UnusableInputError
from kvtune.tokenization.reading import ReadResult, read_trace
from kvtune.tokenization.rejects import REASONS, Rejection
from kvtune.tokenization.sources import digest_of_files

GOOD = b'{"messages": [{"role": "user", "content": "good"}]}'


def read(data: bytes, **options: Any) -> tuple[ReadResult, list[Rejection], bytes]:
    """The result, the rejections, and the rejects file as a writer of one record a line would make it."""
    found: list[Rejection] = []
    kept = bytearray()

    def keep(rejection: Rejection) -> None:
        found.append(rejection)
        for piece in rejection.pieces:
            kept.extend(piece)
        kept.extend(b"\n")

    return read_trace(["-"], stdin=io.BytesIO(data), on_reject=keep, **options), found, bytes(kept)


def message(**fields: Any) -> bytes:
    return json.dumps({"messages": [fields]}).encode()


DEEP = b'{"messages": [{"role": "user", "content": "a"}], "x": ' + b"[" * 500 + b"]" * 500 + b"}"

REJECTED = [
    pytest.param(b'{"messages": [{"role": "user", "content": "cut', "cut_line", None, id="cut in a string"),
    pytest.param(b'{"messages": [{"role": "user"', "cut_line", None, id="cut behind a value"),
    pytest.param(b'{"messages": ', "cut_line", None, id="cut behind a colon"),
    pytest.param(b"{'messages': []}", "invalid_json", None, id="unparsable"),
    pytest.param(b"hello", "invalid_json", None, id="no JSON at all"),
    pytest.param(b'{"messages": [] oops}', "invalid_json", None, id="a word too many"),
    pytest.param(b'{"prompt": "a\tb"}', "invalid_json", None, id="a raw control character in a string"),
    pytest.param(GOOD + b" " + GOOD, "two_values", None, id="two values on a line"),
    pytest.param(GOOD + GOOD, "two_values", None, id="two values with nothing between"),
    pytest.param(b'["a"]', "not_an_object", None, id="a list"),
    pytest.param(b"7", "not_an_object", None, id="a number"),
    pytest.param(b"null", "not_an_object", None, id="null"),
    pytest.param(b'"text"', "not_an_object", None, id="a string"),
    pytest.param(b'{"prompt": "\xff"}', "invalid_utf8", None, id="invalid UTF-8"),
    pytest.param(b'{"prompt": "\xed\xa0\x80"}', "invalid_utf8", None, id="a surrogate as UTF-8"),
    pytest.param(b'{"prompt": "\xc3', "invalid_utf8", None, id="a character cut in half"),
    pytest.param(b'{"prompt": "a\\ud83d"}', "lone_surrogate", None, id="a lone high surrogate"),
    pytest.param(b'{"prompt": "\\ude00b"}', "lone_surrogate", None, id="a lone low surrogate"),
    pytest.param(
        b'{"prompt": "\\ude00\\ud83d"}', "lone_surrogate", None, id="surrogates the wrong way round"
    ),
    pytest.param(b'{"prompt": "a", "x\\u0000": 1}', "nul_in_key", None, id="NUL in a key"),
    pytest.param(b'{"prompt": "a", "x": {"\\u0000": 1}}', "nul_in_key", None, id="NUL in an inner key"),
    pytest.param(b'{"prompt": "a", "timestamp": NaN}', "not_a_number", "timestamp", id="NaN as a time"),
    pytest.param(
        b'{"prompt": "a", "timestamp": Infinity}', "not_a_number", "timestamp", id="Infinity as a time"
    ),
    pytest.param(
        b'{"prompt": "a", "timestamp": 1e999}', "not_a_number", "timestamp", id="a number beyond floats"
    ),
    pytest.param(b'{"prompt": "a", "timestamp": "soon"}', "not_a_time", "timestamp", id="a word as a time"),
    pytest.param(b'{"prompt": "a", "timestamp": true}', "not_a_time", "timestamp", id="true as a time"),
    pytest.param(b'{"prompt": "a", "timestamp": [1]}', "not_a_time", "timestamp", id="a list as a time"),
    pytest.param(
        b'{"prompt": "a", "output_tokens": NaN}', "not_a_number", "output_tokens", id="NaN as a length"
    ),
    pytest.param(b'{"messages": null}', "null_messages", "messages", id="null messages"),
    pytest.param(b'{"messages": []}', "empty_prompt", "messages", id="no messages"),
    pytest.param(b'{"messages": "hi"}', "wrong_type", "messages", id="messages that are text"),
    pytest.param(b'{"messages": ["hi"]}', "wrong_type", "messages[0]", id="a message that is text"),
    pytest.param(
        message(role="robot", content="a"), "unknown_role", "messages[0].role", id="an unknown role"
    ),
    pytest.param(message(content="a"), "unknown_role", "messages[0].role", id="no role"),
    pytest.param(
        message(role=["user"], content="a"), "unknown_role", "messages[0].role", id="a role that is a list"
    ),
    pytest.param(
        message(role="user", content=7), "wrong_type", "messages[0].content", id="a number as content"
    ),
    pytest.param(
        message(role="user", content={"a": 1}), "wrong_type", "messages[0].content", id="an object as content"
    ),
    pytest.param(
        message(role="user", content=[7]), "wrong_type", "messages[0].content[0]", id="a number as a part"
    ),
    pytest.param(
        message(role="user", content=[{"type": "text", "text": None}]),
        "wrong_type",
        "messages[0].content[0].text",
        id="a text part without text",
    ),
    pytest.param(
        message(role="assistant", content=None, tool_calls={"a": 1}),
        "wrong_type",
        "messages[0].tool_calls",
        id="calls",
    ),
    pytest.param(
        b'{"messages": [{"role": "user", "content": "a"}], "tools": 7}', "wrong_type", "tools", id="tools"
    ),
    pytest.param(b'{"prompt": ""}', "empty_prompt", "prompt", id="an empty prompt"),
    pytest.param(b'{"prompt": []}', "empty_prompt", "prompt", id="an empty list of ids"),
    pytest.param(b'{"prompt": null}', "wrong_type", "prompt", id="a null prompt"),
    pytest.param(b'{"prompt": [1, -2]}', "wrong_type", "prompt[1]", id="a negative id"),
    pytest.param(b'{"prompt": [1, "a"]}', "wrong_type", "prompt[1]", id="ids and text"),
    pytest.param(b'{"token_ids": [1, 4294967296]}', "wrong_type", "token_ids[1]", id="an id beyond 32 bits"),
    pytest.param(b'{"token_ids": []}', "empty_prompt", "token_ids", id="no ids"),
    pytest.param(DEEP, "nested_too_deep", None, id="501 levels"),
    pytest.param(b'{"x": ' * 60_000 + b"1" + b"}" * 60_000, "nested_too_deep", None, id="60,000 levels"),
    pytest.param(b'{"colour": "blue"}', "unknown_format", None, id="no known format"),
    pytest.param(
        b'{"timestamp": 1, "input_length": 9, "output_length": 2}', "lengths_only", None, id="lengths only"
    ),
    pytest.param(
        b'{"input": "a", "model": "m", "previous_response_id": "r"}',
        "stateful",
        "previous_response_id",
        id="stateful",
    ),
    pytest.param(
        b'{"input": [{"type": "item_reference", "id": "i"}], "model": "m"}',
        "stateful",
        "input[0]",
        id="a reference",
    ),
    pytest.param(
        b'{"custom_id": "a", "response": {"body": {}}}', "no_request", "body", id="a batch's output"
    ),
    pytest.param(
        b'{"custom_id": "a", "url": "/v1/chat/completions", "body": 7}',
        "wrong_type",
        "body",
        id="a body that is none",
    ),
]


@pytest.mark.parametrize(("line", "reason", "field"), REJECTED)
def test_rejected_by_name_and_the_rest_goes_on(line: bytes, reason: str, field: str | None) -> None:
    result, found, kept = read(GOOD + b"\n" + line + b"\n" + GOOD + b"\n")
    assert [(one.reason, one.field, one.where) for one in found] == [(reason, field, "-:2")]
    assert result.stats.rejected_by == {reason: 1}
    assert len(result.requests) == 2
    assert kept == line + b"\n"
    said = str(found[0])
    assert said.startswith("-:2: ") and REASONS[reason] in said and "found " in said and "wanted " in said
    assert len(said) < 300


def test_every_reason_that_a_line_can_have_is_tested() -> None:
    elsewhere = {
        "line_too_long",
        "truncated_gzip",
        "corrupt_compression",
        "decompression_bomb",
        "wrong_format",
        "missing_field",
        "truncated_prompt",
        "inconsistent_blocks",
        "template_refused",
        "too_long",
    }
    assert {parameter.values[1] for parameter in REJECTED} | elsewhere == set(REASONS)


def test_errors_never_show_content() -> None:
    secret = "my password is swordfish"
    rows = [
        {"prompt": {"text": secret}},
        {"messages": [{"role": secret, "content": secret}]},
        {"messages": [{"role": "user", "content": {secret: secret}}]},
        {"prompt": secret, "timestamp": secret},
        {secret: secret},
        {"messages": [{"role": "user", "content": [{"type": secret}, 7]}]},
    ]
    data = (
        GOOD
        + b"\n"
        + b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        + json.dumps(secret).encode()[:-1]
    )
    _, found, _ = read(data)
    assert len(found) == len(rows) + 1
    assert not any("swordfish" in str(one) for one in found)


@pytest.mark.parametrize("limit", [60, 100, 4096])
def test_a_line_over_the_limit_is_rejected_and_kept_whole(limit: int) -> None:
    long = b'{"prompt": "' + b"x" * 3_000_000 + b'"}'
    result, found, kept = read(GOOD + b"\n" + long + b"\n" + GOOD + b"\n" + long, max_line_bytes=limit)
    assert [one.reason for one in found] == ["line_too_long"] * 2
    assert [one.where for one in found] == ["-:2", "-:4"]
    assert len(result.requests) == 2
    assert kept == long + b"\n" + long + b"\n"


def test_an_overlong_line_that_nobody_keeps_is_passed_over() -> None:
    data = GOOD + b"\n" + b"y" * 3_000_000 + b"\n" + GOOD
    assert len(read_trace(["-"], stdin=io.BytesIO(data), max_line_bytes=100).requests) == 2


def many(count: int) -> bytes:
    rows = [
        {"custom_id": str(n), "url": "/v1/completions", "body": {"prompt": f"{n} " * 99}}
        for n in range(count)
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_truncated_file_is_read_up_to_its_break(compress: Any) -> None:
    data = many(2000)
    packed = compress(data)
    result, found, kept = read(packed[: len(packed) // 2])
    assert [one.reason for one in found] == ["truncated_gzip"]
    count = len(result.requests)
    assert 100 < count < 2000
    assert [request.id for request in result.requests] == [str(number) for number in range(count)]
    whole = data.split(b"\n")
    assert whole[count].startswith(kept.rstrip(b"\n"))


def test_only_the_trailer_of_a_gzip_is_missing() -> None:
    result, found, kept = read(gzip.compress(GOOD)[:-4])
    assert len(result.requests) == 1
    assert ([one.reason for one in found], kept) == (["truncated_gzip"], b"\n")


def test_damaged_gzip() -> None:
    packed = bytearray(gzip.compress(many(2000)))
    packed[len(packed) // 2 :] = b"\x55" * (len(packed) - len(packed) // 2)
    result, found, _ = read(bytes(packed))
    assert len(result.requests) > 100
    assert found[-1].reason in ("corrupt_compression", "truncated_gzip")


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_the_rest_of_a_decompression_bomb_is_rejected(compress: Any) -> None:
    bomb = compress(GOOD + b"\n" + bytes(70 << 20))
    result, found, _ = read(bomb, max_line_bytes=1 << 20)
    assert len(result.requests) == 1
    assert found[-1].reason == "decompression_bomb"
    assert len(found) <= 2


def test_the_digest_covers_the_whole_file_even_where_it_breaks(tmp_path: Path) -> None:
    bomb = gzip.compress(GOOD + b"\n" + bytes(70 << 20)) + b"more"
    damaged = bytearray(gzip.compress(many(50)))
    damaged[100:200] = bytes(100)
    for number, data in enumerate((bomb, bytes(damaged), gzip.compress(many(9))[:-9])):
        path = tmp_path / f"{number}.gz"
        path.write_bytes(data)
        wanted = hashlib.sha256(data).hexdigest()
        assert digest_of_files([str(path)]) == wanted
        with suppress(NoUsableRequestError):
            assert read_trace([str(path)], max_line_bytes=1 << 20).stats.sha256 == wanted


def test_a_bad_utf16_character_spoils_its_line_only() -> None:
    good = GOOD.decode()
    data = b"\xff\xfe" + (good + "\n").encode("utf-16-le") + b"\x00\xd8a\x00\n\x00" + good.encode("utf-16-le")
    result, found, _ = read(data)
    assert len(result.requests) == 2
    assert [(one.reason, one.where) for one in found] == [("invalid_utf8", "-:2")]


def test_a_broken_array_is_read_up_to_its_break() -> None:
    result, found, kept = read(b"[" + GOOD + b",\n" + GOOD + b',\n{"messages": [')
    assert len(result.requests) == 2
    assert [(one.reason, one.where) for one in found] == [("cut_line", "-:3")]
    assert kept == b'{"messages": [\n'


def test_a_bad_element_of_an_array_is_rejected_alone() -> None:
    result, found, kept = read(b"[\n" + GOOD + b',\n{"messages": null},\n7,\n' + GOOD + b"\n]")
    assert len(result.requests) == 2
    assert [(one.reason, one.where) for one in found] == [("null_messages", "-:3"), ("not_an_object", "-:4")]
    assert kept == b'{"messages": null}\n7\n'


@pytest.mark.parametrize("indent", [None, 2])
def test_an_unreadable_element_on_lines_of_its_own_is_rejected_alone(indent: int | None) -> None:
    records = [json.dumps({"prompt": name, "more": {"a": [{}]}}, indent=indent) for name in "abc"]
    broken = records[1].replace('"more"', "more")
    margin = "  " if indent else ""
    text = "[\n" + ",\n".join([records[0], broken, records[2]]) + "\n]"
    data = text.replace("\n", f"\n{margin}").encode()
    result, found, kept = read(data)
    assert [request.text for request in result.requests] == ["a", "c"]
    assert [one.reason for one in found] == ["invalid_json"]
    assert kept.decode().strip() == broken.replace("\n", f"\n{margin}")


def test_a_cut_gzip_around_a_document_is_told_once() -> None:
    for cut, count in ((-4, 2), (-40, 0)):
        data = gzip.compress(b"[" + GOOD + b",\n" + GOOD + b"]")[:cut]
        found: list[Rejection] = []
        try:
            result = read_trace(["-"], stdin=io.BytesIO(data), on_reject=found.append)
        except NoUsableRequestError:
            assert count == 0
        else:
            assert len(result.requests) == count
        assert [one.reason for one in found] == ["truncated_gzip"]


def test_a_first_line_that_is_no_json_does_not_change_what_the_file_is() -> None:
    for first in (b"[2026-01-02 03:04:05] server up", b"a,b", b"id;request"):
        result, found, _ = read(first + b"\n" + GOOD + b"\n" + GOOD + b"\n")
        assert len(result.requests) == 2
        assert [one.where for one in found] == ["-:1"]


def test_a_record_that_is_bad_in_part_is_rejected_whole() -> None:
    row = {"id": "c", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": 7}]}
    result, found, _ = read(GOOD + b"\n" + json.dumps(row).encode())
    assert [request.endpoint for request in result.requests] == ["chat"]
    assert [one.reason for one in found] == ["wrong_type"]


def test_csv_rows_are_rejected_alone() -> None:
    rows = ["timestamp,prompt", "1,first", '2,"two', 'lines"', "3,a,b", '4,"open', "5,last"]
    result, found, kept = read("\n".join(rows).encode())
    assert [request.text for request in result.requests] == ["first", "two\nlines", "last"]
    assert [(one.reason, one.where) for one in found] == [("wrong_type", "-:5"), ("cut_line", "-:6")]
    assert kept == b'3,a,b\n4,"open\n'


def test_a_quote_that_never_closes_spoils_its_own_line_only() -> None:
    rows = ["timestamp,prompt", '1,"open', "2,b", "3,c", '4,"two', 'lines"', "5,e", '6,"open again', "7,g"]
    result, found, kept = read("\n".join(rows).encode())
    assert [request.text for request in result.requests] == ["b", "c", "two\nlines", "e", "g"]
    assert [(one.where, one.reason) for one in found] == [("-:2", "cut_line"), ("-:8", "cut_line")]
    assert kept == b'1,"open\n6,"open again\n'


@pytest.mark.parametrize("data", [b"", b"\n\n", b"   "])
def test_an_empty_file_has_no_usable_request(data: bytes) -> None:
    with pytest.raises(NoUsableRequestError, match="an empty file"):
        read(data)


def test_nothing_usable_says_why() -> None:
    with pytest.raises(NoUsableRequestError, match="messages is null: 2") as caught:
        read(b'{"messages": null}\n' * 2)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("trace.zip", b"PK\x03\x04" + bytes(40), "damaged"),
        ("trace.bz2", b"BZh91AY&SY" + bytes(40), "damaged"),
        ("trace.7z", b"7z\xbc\xaf\x27\x1c" + bytes(40), "a 7z archive"),
        ("requests.db", b"SQLite format 3\x00" + bytes(99), "an SQLite database"),
    ],
)
def test_damaged_and_unknown_archives_are_refused_by_kind(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises((UnusableInputError, NoUsableRequestError), match=said):
        read_trace([str(path)])


def test_missing_files_and_folders_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnusableInputError, match=r"gone\.jsonl: cannot be read"):
        read_trace([str(tmp_path / "gone.jsonl")])
    with pytest.raises(UnusableInputError, match="is a folder"):
        read_trace([str(tmp_path)])
