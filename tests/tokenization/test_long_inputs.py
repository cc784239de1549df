"""Texts that a careless search reads again for each of its characters. At this size that would take hours."""

from __future__ import annotations

import gzip
import io
import json

import pytest
import zstandard

from kvtune.tokenization.errors import KvtuneError
from kvtune.tokenization.reading import read_trace
from kvtune.tokenization.strict_json import StrictDecoder

N = 500_000
GOOD = b'{"prompt": "good"}'
LOG = b"DEBUG 01-02 03:04:05 [logger.py:52] Request cmpl-1 details: prompt: "

TEXTS = {
    "escaped quotes in an open string": b'{"a": "' + b'\\"' * N,
    "backslashes before a colon": b'{"a": "' + b"\\\\" * N + b' :", "b" : 1}',
    "quotes": b'"' * N,
    "quotes and spaces": b'{"a": "' + b'\\" ' * N + b' : "}',
    "open brackets": b"[" * N,
    "open objects": b'{"a":' * N,
    "spaces in a time": b'{"prompt": "a", "timestamp": "1' + b" " * N + b'x"}',
    "digits in a time": b'{"prompt": "a", "timestamp": "' + b"9" * N + b'"}',
    "digits": b'{"prompt": "a", "timestamp": ' + b"9" * N + b"}",
    "keys": b"{" + b'"k": 1, ' * N + b'"prompt": "a"}',
    "a broken array in one line": b"[" + b'{"prompt":"a"},' * (N // 25) + b"oops]",
    "a broken array of broken lines": b"[\n" + b'{"prompt":},\n' * (N // 25) + b"]",
    "an open array": b"[" + b'{"prompt":"a"},' * (N // 25),
    "an open quote in a log": LOG + b"'" + b"\\'" * N,
    "open adapters in a log": LOG + b"'a', " + b"lora_name='\\'" * (N // 10),
    "open ids in a log": LOG + b"None, " + b"prompt_token_ids: [1, 1" * (N // 10),
    "colour codes in a log": b"\x1b[" * N,
    "open CSV quotes": b"id,prompt\n" + b'1,"a\n' * (N // 10),
    "commas": b"id,prompt\n" + b"," * N,
    "empty gzip members": gzip.compress(b"") * (N // 10) + gzip.compress(GOOD),
    "empty zstd frames": zstandard.ZstdCompressor().compress(b"") * (N // 10),
}


@pytest.mark.parametrize("name", TEXTS)
def test_long_texts_are_read_once(name: str) -> None:
    try:
        result = read_trace(["-"], stdin=io.BytesIO(TEXTS[name]))
    except KvtuneError:
        return
    assert result.requests


def test_a_long_chain_of_parents() -> None:
    rows = [
        {
            "chat_id": chat,
            "parent_chat_id": chat - 1,
            "timestamp": chat,
            "input_length": 16,
            "hash_ids": [chat],
        }
        for chat in range(20_000, 0, -1)
    ]
    result = read_trace(["-"], stdin=io.BytesIO("\n".join(map(json.dumps, rows)).encode()))
    assert {request.session for request in result.requests} == {"0"}


def test_a_value_with_a_million_escaped_quotes() -> None:
    text = json.dumps({"a": '"' * 1_000_000, "b": ['":' * 1000] * 100, "c": " :" * 1000})
    decoder = StrictDecoder()
    assert decoder.decode(text.encode()) == json.loads(text)
    assert decoder.duplicate_keys == 0
