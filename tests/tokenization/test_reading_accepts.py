"""What a reader must take: each item of the list, with what it becomes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kvtune.tokenization.errors import NoUsableRequestError, UnusableInputError
from kvtune.tokenization.reading import ReadResult, read_trace


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]} | more


def lines(*records: dict[str, Any]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def read(data: bytes, **options: Any) -> ReadResult:
    def fail(rejection: object) -> None:
        pytest.fail(str(rejection))

    return read_trace(["-"], stdin=io.BytesIO(data), on_reject=fail, **options)


def texts(result: ReadResult) -> list[Any]:
    return [
        request.messages[0]["content"] if request.messages else request.text for request in result.requests
    ]


TWO = lines(chat("Grüße"), chat("zwei"))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(TWO, id="plain"),
        pytest.param(b"\xef\xbb\xbf" + TWO, id="byte-order mark"),
        pytest.param(TWO.replace(b"\n", b"\r\n"), id="CRLF"),
        pytest.param(TWO.decode().encode("utf-16"), id="UTF-16 little endian"),
        pytest.param(b"\xfe\xff" + TWO.decode().encode("utf-16-be"), id="UTF-16 big endian"),
        pytest.param(b"\xff\xfe" + TWO.decode().replace("\n", "\r\n").encode("utf-16-le"), id="UTF-16, CRLF"),
        pytest.param(b"\n  \n" + TWO.replace(b"\n", b"\n\n\t\r\n") + b" ", id="blank lines"),
        pytest.param(TWO.rstrip(), id="no line end at the end"),
        pytest.param(b"  " + TWO.replace(b"\n", b"  \n"), id="spaces around"),
        pytest.param(gzip.compress(TWO), id="gzip"),
        pytest.param(
            gzip.compress(TWO[:10]) + gzip.compress(TWO[10:]) + b"\0" * 7, id="gzip, two members, padding"
        ),
        pytest.param(zstandard.ZstdCompressor().compress(TWO), id="zstd"),
        pytest.param(
            zstandard.ZstdCompressor().compress(TWO[:9]) + zstandard.ZstdCompressor().compress(TWO[9:]),
            id="zstd, two frames",
        ),
        pytest.param(gzip.compress(b"\xef\xbb\xbf" + TWO), id="byte-order mark inside gzip"),
        pytest.param(b"[\n" + TWO.strip().replace(b"\n", b",\n") + b"\n]\n", id="a JSON array"),
        pytest.param(b"[" + TWO.strip().replace(b"\n", b",") + b"]", id="a JSON array in one line"),
        pytest.param(
            json.dumps([chat("Grüße"), chat("zwei")], indent=2).encode(), id="a JSON array, indented"
        ),
    ],
)
def test_same_requests_however_packed(data: bytes) -> None:
    result = read(data)
    assert texts(result) == ["Grüße", "zwei"]
    assert result.stats.rejected == 0
    assert result.stats.sha256 == hashlib.sha256(data).hexdigest()


def test_indented_objects_one_after_another_are_records() -> None:
    data = "\n".join(json.dumps(chat(text), indent=2) for text in "abc").encode()
    result = read(b"\n\n" + data)
    assert texts(result) == ["a", "b", "c"]
    assert [request.source for request in result.requests] == ["-:3", "-:12", "-:21"]


def test_one_indented_object_is_a_record() -> None:
    assert texts(read(json.dumps(chat("a"), indent=2).encode())) == ["a"]


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\u00a0"])
def test_unicode_line_breaks_in_strings_are_text(character: str) -> None:
    escaped = json.dumps(chat(f"a{character}b")).encode()
    assert texts(read(escaped + b"\n" + lines(chat("c")))) == [f"a{character}b", "c"]
    if character >= " ":
        assert texts(read(lines(chat(f"a{character}b"), chat("c")))) == [f"a{character}b", "c"]


@pytest.mark.parametrize(
    ("times", "unit", "arrivals"),
    [
        ([0, 1.5], "s", [0.0, 1.5]),
        ([1767323045.25, 1767323046], "s", [1767323045.25, 1767323046.0]),
        ([1767323045250, 1767323046000], "ms", [1767323045.25, 1767323046.0]),
        ([1767323045250000, 1767323046000000], "us", [1767323045.25, 1767323046.0]),
        ([1767323045250000000, 1767323046000000000], "ns", [1767323045.25, 1767323046.0]),
        (["1767323045250", "1767323046000"], "ms", [1767323045.25, 1767323046.0]),
        (["2026-01-02T03:04:05.25Z", "2026-01-02T03:04:06Z"], "ISO 8601", [1767323045.25, 1767323046.0]),
        (["2026-01-02T03:04:05.25", "2026-01-02 03:04:06"], "ISO 8601", [1767323045.25, 1767323046.0]),
        (
            ["2026-01-02T04:04:05.25+01:00", "2026-01-01T21:04:06-0600"],
            "ISO 8601",
            [1767323045.25, 1767323046.0],
        ),
        (
            ["2026-01-02 03:04:05.2500000 UTC", "2026-01-02T03:04:06,0000000Z"],
            "ISO 8601",
            [1767323045.25, 1767323046.0],
        ),
    ],
)
def test_times_of_any_unit(times: list[Any], unit: str, arrivals: list[float]) -> None:
    result = read(lines(*(chat("a", timestamp=time) for time in times)))
    assert [request.arrival for request in result.requests] == arrivals
    assert result.stats.timestamp_units == {"-": unit}


def test_one_wild_time_does_not_decide_the_unit() -> None:
    result = read(lines(*(chat("a", timestamp=time) for time in (1767323045, 1767323046, 9e18))))
    assert result.stats.timestamp_units == {"-": "s"}


def test_no_times_no_unit() -> None:
    result = read(TWO)
    assert [request.arrival for request in result.requests] == [None, None]
    assert result.stats.timestamp_units == {"-": None}


def test_out_of_order_lines_are_sorted_stably_and_counted() -> None:
    result = read(
        lines(*(chat(text, timestamp=time) for text, time in (("c", 3), ("a", 1), ("d", 3), ("b", 2))))
    )
    assert texts(result) == ["a", "b", "c", "d"]
    assert result.stats.reordered == 2


def test_a_request_without_a_time_stays_behind_the_one_before_it() -> None:
    rows = [chat("b", timestamp=2), chat("c"), chat("a", timestamp=1)]
    assert texts(read(lines(*rows))) == ["a", "b", "c"]


def test_duplicate_ids_are_kept_and_numbered() -> None:
    result = read(
        lines(*(chat(text, id=name) for text, name in (("a", "x"), ("b", "x"), ("c", "x#2"), ("d", "x"))))
    )
    assert [request.id for request in result.requests] == ["x", "x#3", "x#2", "x#4"]
    assert result.stats.duplicate_ids == 2


def test_several_formats_in_one_file() -> None:
    rows = [
        chat("a", timestamp=1),
        {
            "custom_id": "b",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": "b"},
            "timestamp": 2,
        },
        {"token_ids": [1, 2], "timestamp": 3},
        {"prompt": "d", "timestamp": 4},
    ]
    result = read(lines(*rows))
    assert texts(result) == ["a", "b", None, "d"]
    assert result.requests[2].token_ids == [1, 2]
    assert result.stats.formats == {
        "openai-chat": 1,
        "openai-batch": 1,
        "token-ids": 1,
        "openai-completions": 1,
    }


def test_content_parts_and_base64_pass_unchanged() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    content = [{"type": "text", "text": "see"}, image]
    result = read(lines({"messages": [{"role": "user", "content": content}]}))
    assert result.requests[0].messages == [{"role": "user", "content": content}]


def test_the_last_of_duplicate_keys_wins_and_is_counted() -> None:
    data = b'{"messages": [{"role": "user", "content": "x", "content": "a"}], "model": "m", "model": "n"}\n'
    result = read(data)
    assert texts(result) == ["a"]
    assert result.requests[0].identity.model == "n"
    assert result.stats.duplicate_keys == 2


def test_a_line_up_to_the_limit_is_read() -> None:
    data = lines(chat("x" * 3000))
    assert texts(read(data, max_line_bytes=len(data) - 1)) == ["x" * 3000]


def test_500_levels_are_read() -> None:
    deep = "[" * 499 + "]" * 499
    assert texts(read(f'{{"messages": [{{"role": "user", "content": "a"}}], "x": {deep}}}'.encode())) == ["a"]


def test_nan_where_no_number_is_needed_is_let_pass() -> None:
    assert texts(read(b'{"messages": [{"role": "user", "content": "a"}], "score": NaN}')) == ["a"]


def test_files_merge_by_time_and_have_one_digest(tmp_path: Path) -> None:
    first, second = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    first.write_bytes(lines(chat("a", timestamp=1), chat("c", timestamp=3)))
    second.write_bytes(lines(chat("b", timestamp=2), chat("d", timestamp=3)))
    result = read_trace([str(first), str(second)])
    assert texts(result) == ["a", "b", "c", "d"]
    assert result.stats.files == [str(first), str(second)]
    digests = [hashlib.sha256(path.read_bytes()).digest() for path in (first, second)]
    assert result.stats.sha256 == hashlib.sha256(b"".join(digests)).hexdigest()
    assert [request.source for request in result.requests] == [
        f"{first}:1",
        f"{second}:1",
        f"{first}:2",
        f"{second}:2",
    ]
    assert texts(read_trace([str(second), str(first)])) == ["a", "b", "d", "c"]


def test_without_a_common_clock_files_follow_in_argument_order(tmp_path: Path) -> None:
    first, second = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    first.write_bytes(lines(chat("a"), chat("b")))
    second.write_bytes(lines(chat("d", timestamp=9), chat("c", timestamp=2)))
    result = read_trace([str(first), str(second)])
    assert texts(result) == ["a", "b", "c", "d"]
    assert any("argument order" in note for note in result.stats.notes)


def test_files_of_different_clocks_merge_with_a_caveat(tmp_path: Path) -> None:
    first, second = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    first.write_bytes(lines(chat("b", timestamp="2026-01-02T03:04:05Z")))
    second.write_bytes(lines(chat("a", timestamp=7)))
    result = read_trace([str(first), str(second)])
    assert texts(result) == ["a", "b"]
    assert any("count from their start" in note for note in result.stats.notes)


def test_identity() -> None:
    rows = [
        chat("a", cache_salt="s", lora="ad", lora_path="/ad"),
        chat("a", lora_request={"lora_name": "ad", "lora_path": "/ad"}, tenant="t"),
        chat("a") | {"model": "n"},
        chat("a", user="u1"),
        chat("a", user="u2"),
    ]
    one, two, three, four, five = (request.identity for request in read(lines(*rows)).requests)
    assert (one.model, one.lora, one.lora_path, one.cache_salt, one.tenant) == ("m", "ad", "/ad", "s", None)
    assert (two.lora, two.lora_path, two.tenant) == ("ad", "/ad", None)
    assert three.model == "n"
    assert four == five  # a user's name is no part of the engine's key
    assert len({one, two, three, four}) == 4


@pytest.mark.parametrize("field", ["lora_request", "lora", "lora_name", "lora_adapter"])
def test_an_adapter_is_a_name_or_an_object_that_holds_one(field: str) -> None:
    rows = [chat("a", **{field: "ad"}), chat("a", **{field: {"name": "ad", "path": "/p"}}), chat("a")]
    found = [request.identity for request in read(lines(*rows)).requests]
    assert [(one.lora, one.lora_path) for one in found] == [("ad", None), ("ad", "/p"), (None, None)]


def test_the_server_comes_from_the_log_or_from_the_field_asked_for() -> None:
    rows = [chat("a", api_base="http://a", metadata={"pod": "p1"}), chat("b", metadata={"pod": "p2"})]
    assert [request.server for request in read(lines(*rows)).requests] == ["http://a", None]
    assert [request.server for request in read(lines(*rows), by_field="metadata.pod").requests] == [
        "p1",
        "p2",
    ]
    assert [request.server for request in read(lines(*rows), by_field="pod").requests] == ["p1", "p2"]
    with pytest.raises(UnusableInputError, match="--by-field"):
        read(lines(*rows), by_field="rack")


def test_parameters_of_the_api_are_kept() -> None:
    extra = {
        "chat_template": "{{ messages }}",
        "chat_template_kwargs": {"enable_thinking": False},
        "add_generation_prompt": False,
        "continue_final_message": True,
        "add_special_tokens": True,
        "documents": [{"text": "d"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }
    request = read(lines(chat("a", **extra))).requests[0]
    assert {name: getattr(request, name) for name in extra} == extra


def test_a_format_asked_for_by_name() -> None:
    assert texts(read(TWO, format="openai-chat")) == ["Grüße", "zwei"]
    with pytest.raises(UnusableInputError, match="no such format"):
        read(TWO, format="opnai")
    with pytest.raises(NoUsableRequestError):
        read_trace(["-"], stdin=io.BytesIO(TWO), format="mooncake")


def test_equal_parts_are_one_object() -> None:
    """What makes long traces small: the same tools and the same messages are held once."""
    tools = [
        {"type": "function", "function": {"name": f"tool{number}", "description": "x" * 200}}
        for number in range(9)
    ]
    rows = [chat("hello " * 50, tools=tools, timestamp=number) for number in range(4)]
    requests = read(lines(*rows)).requests
    assert requests[2].tools is requests[3].tools
    assert requests[2].messages is not None and requests[3].messages is not None
    assert requests[2].messages[0] is requests[3].messages[0]


def test_progress_counts_raw_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(TWO))
    calls: list[tuple[int, int | None]] = []
    read_trace([str(path)], progress=lambda done, size: calls.append((done, size)))
    assert calls[-1] == (path.stat().st_size, path.stat().st_size)
