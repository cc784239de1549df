"""Public cases about traces and keys: what people ran into, and what a reader makes of it.

Cases by id, as in the collection that the report's advice was held against:

    traces  K073 K091 K122 K132 K133 K135
    keys    K096 K098 K099 K102

K089, K090, K093 and K095 are about tokens and stand with the encoder's tests; K100 is about a connector's own
hash of 16 bits, which no trace shows.
"""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from kvtune.analyzers.shared import find_shared_prefixes
from kvtune.tokenization.encode import encode_trace
from kvtune.tokenization.errors import NoUsableRequestError
from kvtune.tokenization.media import media_digest
from kvtune.tokenization.reading import ReadResult, read_trace
from kvtune.tokenization.rejects import Rejection

HELLO = [{"role": "user", "content": "hello"}]


def read(data: bytes) -> tuple[ReadResult, list[Rejection]]:
    found: list[Rejection] = []
    return read_trace(["-"], stdin=io.BytesIO(data), on_reject=found.append), found


def rows(*records: dict[str, Any]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def shared_tokens(*records: dict[str, Any]) -> list[int]:
    """Shared prefix of each request, in tokens: nothing is shared between namespaces."""
    result, _ = read(rows(*records))
    trace, _ = encode_trace(result.requests, None)
    return [int(one) for one in find_shared_prefixes(trace).shared]


def test_k073_one_bad_record_among_many_is_named_by_file_line_and_field() -> None:
    good = {"captureData": {"endpointInput": {"data": json.dumps({"messages": HELLO})}}, "eventMetadata": {}}
    bad = {"captureData": {"endpointInput": {"data": json.dumps({"messages": None})}}, "eventMetadata": {}}
    result, found = read(rows(*[good] * 500, bad, *[good] * 499))
    assert len(result.requests) == 999
    assert [str(one) for one in found] == [
        "-:501: captureData.endpointInput.data.messages: messages is null (found null, wanted a list of messages)"
    ]


@pytest.mark.parametrize(
    ("url", "body", "endpoint"),
    [
        ("/v1/chat/completions", {"messages": HELLO}, "chat"),
        ("/v1/completions", {"prompt": "hello"}, "completions"),
        ("/v1/responses", {"input": "hello"}, "responses"),
        ("/v1/messages", {"messages": HELLO}, "messages"),
    ],
)
def test_k091_the_endpoint_of_every_request_is_kept(url: str, body: dict[str, Any], endpoint: str) -> None:
    result, _ = read(rows({"custom_id": "a", "method": "POST", "url": url, "body": {"model": "m"} | body}))
    assert [request.endpoint for request in result.requests] == [endpoint]


def test_k096_a_salt_for_every_tenant_shares_nothing_between_tenants() -> None:
    ids = list(range(100))
    tenants = [{"model": "m", "prompt": ids, "cache_salt": f"tenant {number}"} for number in range(4)]
    assert shared_tokens(*tenants) == [0, 0, 0, 0]
    assert shared_tokens(*tenants, *tenants) == [0, 0, 0, 0, 99, 99, 99, 99]
    without = [{"model": "m", "prompt": ids}] * 4
    assert shared_tokens(*without) == [0, 99, 99, 99]


def test_k098_each_adapter_misses_its_first_request() -> None:
    ids = list(range(100))
    base, adapter = {"model": "m", "prompt": ids}, {"model": "m", "prompt": ids, "lora": "desk"}
    assert shared_tokens(base, base, adapter, adapter) == [0, 99, 0, 99]


def test_k099_an_adapter_loaded_again_from_elsewhere_is_another_key() -> None:
    ids = list(range(100))
    first, second = (
        {"prompt": ids, "lora_request": {"lora_name": "desk", "lora_path": path}} for path in ("/a", "/b")
    )
    assert shared_tokens(first, first, second) == [0, 99, 0]


def test_k102_an_image_has_an_identity_of_its_own() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        for data in ("AAAA", "AAAB")
    ]
    result, _ = read(
        rows(*({"messages": [{"role": "user", "content": ["see", part]}]} for part in (*parts, parts[0])))
    )
    digests = [
        media_digest(request.messages[0]["content"][1]) for request in result.requests if request.messages
    ]
    assert digests[0] == digests[2] != digests[1]


def test_k122_a_cut_last_line_costs_that_line() -> None:
    data = rows(*[{"messages": HELLO}] * 3)
    result, found = read(data + data[:30])
    assert len(result.requests) == 3
    assert [(one.where, one.reason) for one in found] == [("-:4", "cut_line")]


@pytest.mark.parametrize("character", ["\u2028", "\u0085"])
def test_k132_only_lf_ends_a_record_and_text_is_utf8(character: str) -> None:
    text = f"Grüße{character}再见"
    data = json.dumps({"messages": [{"role": "user", "content": text}]}, ensure_ascii=False).encode()
    result, found = read(data + b"\n" + data)
    assert [request.messages[0]["content"] for request in result.requests if request.messages] == [text, text]
    assert not found


def test_k133_a_character_that_chunks_cut_is_whole_again() -> None:
    class OneByte(io.RawIOBase):
        """Gives a byte at a time, as a slow pipe can."""

        def __init__(self, data: bytes) -> None:
            self._data = io.BytesIO(data)

        def read(self, size: int = -1) -> bytes:
            return self._data.read(min(size, 1))

    data = json.dumps({"prompt": "再见 \U0001f600"}, ensure_ascii=False).encode()
    for packed in (data, b"\xff\xfe" + data.decode().encode("utf-16-le")):
        result = read_trace(["-"], stdin=OneByte(packed))  # type: ignore[arg-type]
        assert [request.text for request in result.requests] == ["再见 \U0001f600"]


def test_k135_a_log_of_requests_is_enough_and_one_of_responses_is_refused_by_name() -> None:
    request = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"model": "m", "prompt": "x"},
    }
    response = {
        "id": "b",
        "custom_id": "a",
        "response": {"status_code": 200, "body": {"choices": []}},
        "error": None,
    }
    result, found = read(rows(request, response))
    assert len(result.requests) == 1
    assert ["a batch's output" in str(one) for one in found] == [True]
    with pytest.raises(NoUsableRequestError, match="no request in the record"):
        read(rows(response))
