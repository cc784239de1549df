"""Fuzz targets, one per format: hostile versions of its own files; nothing but named errors may come out.

A seed is a test case. A few run with the tests; `make fuzz` runs 100,000 (this file as a program).
"""

from __future__ import annotations

import argparse
import bz2
import contextlib
import copy
import gzip
import io
import json
import lzma
import math
import random
import resource
import sys
import tarfile
import time
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtune.tokenization.errors import KvtuneError
from kvtune.tokenization.formats import FORMATS
from kvtune.tokenization.formats.format import Format
from kvtune.tokenization.formats.messages import ROLES
from kvtune.tokenization.media import has_media, media_digest
from kvtune.tokenization.reading import read_trace
from kvtune.tokenization.rejects import Rejection
from kvtune.tokenization.request import Request
from kvtune.tokenization.selection import Selection

REAL = Path(__file__).parents[1] / "data" / "logs" / "real"
DATA = Path(__file__).parents[1] / "data" / "formats"
MOST_SAID = 400  # characters of an error, none of them content


def _nested(key: str | None) -> Any:
    """450 levels of one key, or of lists."""
    value: Any = "end"
    for _ in range(450):
        value = [value] if key is None else {key: value}
    return value


HOSTILE: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    2**63,
    -(2**70),
    10**400,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    " ",
    "a",
    "NaN",
    "9" * 5000,
    "2026-01-02T03:04:05Z",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59.9999999-12:00",
    "\u2028\u0085\x00",
    "\ud800",
    "{",
    '{"messages": [{"role": "user", "content": "inner"}]}',
    "[" * 600,
    "data:image/png;base64,!!!",
    [],
    [[]],
    [None],
    [0],
    ["a"],
    [{}],
    {},
    {"": {}},
    {"role": "user"},
    {"type": "text"},
    {"stringValue": 7},
    _nested("body"),
    _nested("content"),
    _nested("requests"),
    _nested("kvlistValue"),
    _nested(None),
    {"arrayValue": {"values": None}},
)
KEYS = (
    "messages",
    "prompt",
    "input",
    "body",
    "role",
    "content",
    "type",
    "tools",
    "id",
    "timestamp",
    "\x00",
    "status",
    "error",
    "response",
    "tool_calls",
    "previous_response_id",
    "attributes",
    "call_type",
    "request_time",
    "model",
    "parent_id",
    "reasoning_effort",
    "url",
)
BYTES = (b"\n", b"\r", b'"', b"\\", b"{", b"]", b"\\ud800", b"\x00", b"\xff", b",", b"'", b"[" * 700)


def mutated_record(rng: random.Random, record: Any) -> Any:
    """The record with one to four of its inner values replaced, removed, doubled or moved."""
    changed = copy.deepcopy(record)
    for _ in range(rng.randint(1, 4)):
        holder, key = _somewhere(rng, changed)
        if holder is None:
            return _hostile(rng)
        _change(rng, holder, key)
    return changed


def _somewhere(rng: random.Random, value: Any) -> tuple[Any, Any]:
    """A container in the value and one of its keys, deeper ones as likely as shallow ones."""
    holder, key = None, None
    here = value
    while isinstance(here, dict | list) and here:
        holder = here
        key = rng.choice(list(here)) if isinstance(here, dict) else rng.randrange(len(here))
        here = holder[key]
        if rng.random() < 0.25:
            break
    return holder, key


def _change(rng: random.Random, holder: Any, key: Any) -> None:
    what = rng.randrange(5)
    if what == 0:
        del holder[key]
    elif what == 1 and isinstance(holder, dict):
        holder[rng.choice(KEYS)] = holder.pop(key)
    elif what == 2 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif what == 3:
        holder[key] = json.dumps(holder[key]) if rng.random() < 0.5 else [holder[key]]
    else:
        holder[key] = _hostile(rng)


def _hostile(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(HOSTILE))


def mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    """The file with bytes flipped, cut, doubled, recoded or packed."""
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(damaged) + 1)
        to = min(len(damaged), at + rng.randint(1, 40))
        what = rng.randrange(6)
        if what == 0:
            damaged[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 8)))
        elif what == 1:
            del damaged[at:to]
        elif what == 2:
            damaged[at:at] = damaged[at:to] * rng.randint(1, 20)
        elif what == 3:
            damaged[at:at] = rng.choice(BYTES)
        elif what == 4:
            del damaged[at:]
        else:
            damaged[at:at] = rng.choice((b"[" * 700, b'{"a":' * 700, b"9" * 5000, b"\xe2\x80\xa8"))
    return _packed(rng, bytes(damaged))


def _packed(rng: random.Random, data: bytes) -> bytes:
    """The file as it is, or as a file can be packed, whole or cut."""
    what = rng.randrange(10)
    if what == 0:
        return b"\xef\xbb\xbf" + data
    if what == 5:
        return _cut(rng, rng.choice((bz2, lzma)).compress(data))
    if what == 6:
        return _cut(rng, _archived(rng, data))
    if what == 1:
        return _cut(rng, gzip.compress(data, 1))
    if what == 2:
        return _cut(rng, zstandard.ZstdCompressor(level=1).compress(data))
    if what == 3:
        text = data.decode("utf-8", "replace").encode("utf-16-le", "surrogatepass")
        return _cut(rng, b"\xff\xfe" + text)
    if what == 4:
        return b"[" + data.replace(b"\n", b",\n") + b"]"
    return data


def _archived(rng: random.Random, data: bytes) -> bytes:
    """The file twice in an archive."""
    held = io.BytesIO()
    if rng.random() < 0.5:
        with zipfile.ZipFile(held, "w") as archive:
            archive.writestr("a", data)
            archive.writestr("../b\x1b", gzip.compress(data, 1))
        return held.getvalue()
    with tarfile.open(fileobj=held, mode="w") as tape:
        for name in ("a", "../b\x1b"):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tape.addfile(info, io.BytesIO(data))
    return mutated_tar(rng, held.getvalue())


def mutated_tar(rng: random.Random, data: bytes) -> bytes:
    """The archive, at times with a byte of a header changed."""
    damaged = bytearray(data)
    if rng.random() < 0.5:
        damaged[rng.randrange(512)] = rng.randrange(256)
    return bytes(damaged)


PREFIXES = (
    "2026-01-02T03:04:05.678Z ",
    "2026-01-02T03:04:05Z stdout F ",
    "2026-01-02T03:04:05Z stderr P ",
    "[pod/a/b] ",
    "gw-1  | ",
    "Jan 02 03:04:05 host a[1]: ",
)


def wrapped(rng: random.Random, record: Any) -> str:
    """A record as a line, at times inside what a shipper puts around it."""
    text = json.dumps(record, ensure_ascii=rng.random() < 0.5)
    for _ in range(rng.choice((0, 0, 0, 0, 1, 1, 2, 7))):
        name = rng.choice(
            (
                "message",
                "log",
                "line",
                "_raw",
                "_source",
                "payload",
                "event",
                "data",
                "values",
                "hits",
                "body",
            )
        )
        held = rng.choice((text, _loaded(text), [_loaded(text)], [["1796080956746691000", text]]))
        outer = {name: held, rng.choice(("time", "@timestamp", "stream", "sessionId")): _hostile(rng)}
        text = json.dumps(outer)
    return rng.choice(PREFIXES) + text if rng.random() < 0.2 else text


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)] if rng.random() < 0.5 else data


@cache
def seeds(name: str) -> tuple[tuple[bytes, tuple[Any, ...]], ...]:
    """A format's files, whole and as records; the example counts as one."""
    known = next(one for one in FORMATS if one.name == name)
    files = [known.example.encode() + b"\n"]
    for path in sorted(DATA.iterdir()):
        if path.suffix in (".md", ".csv"):
            continue
        data = path.read_bytes()
        try:
            formats = read_trace([str(path)]).stats.formats
        except KvtuneError:
            formats = {"lengths": 1}
        if name in formats:
            files.append(data)
    files += [data for data, formats in real_records() if name in formats]
    if name == "request-column":
        files.append((DATA / "request-column.csv").read_bytes())
    return tuple((data, _records(data)) for data in files)


@cache
def real_records() -> tuple[tuple[bytes, frozenset[str]], ...]:
    """The shortest lines of logs that real software wrote, and the formats that read them."""
    found = []
    for path in sorted(REAL.glob("*.jsonl.zst")):
        lines = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read().splitlines()
        data = b"\n".join(sorted(lines, key=len)[:3])
        with contextlib.suppress(KvtuneError):
            found.append((data, frozenset(read_trace(["-"], stdin=io.BytesIO(data)).stats.formats)))
    return tuple(found)


def _records(data: bytes) -> tuple[Any, ...]:
    try:
        whole = json.loads(data)
    except ValueError:
        return tuple(json.loads(line) for line in data.splitlines() if line.startswith(b"{"))
    return tuple(whole) if isinstance(whole, list) else (whole,)


def fuzz(known: Format, seed: int) -> None:
    """One input: a mutated file of the format, read by its look or by name. Raises whatever a reader should not."""
    rng = random.Random(f"{known.name} {seed}")
    data, records = rng.choice(seeds(known.name))
    if records and rng.random() < 0.6:
        changed = [mutated_record(rng, record) if rng.random() < 0.7 else record for record in records]
        lines = [wrapped(rng, record) for record in changed]
        text = "\n".join(lines) if rng.random() < 0.8 else f"[{', '.join(lines)}]"
        data = text.encode("utf-8", "surrogatepass")
    else:
        data = mutated_bytes(rng, data)
    said: list[Rejection] = []

    def keep(rejection: Rejection) -> None:
        said.append(rejection)
        assert len(str(rejection)) < MOST_SAID
        for _ in rejection.pieces:
            pass

    try:
        result = read_trace(
            ["-"],
            format=rng.choice(("auto", known.name)),
            stdin=io.BytesIO(data),
            max_line_bytes=rng.choice((64, 4096, 1 << 28)),
            by_field=rng.choice((None, None, "metadata.pod")),
            selection=Selection(body_field=rng.choice((None, None, None, "body", "message.body"))),
            on_reject=keep,
        )
    except KvtuneError as error:
        assert len(str(error)) < 4 * MOST_SAID
        return
    assert result.stats.rejected == len(said)
    assert len({request.id for request in result.requests}) == len(result.requests)
    for request in result.requests:
        check(request)


def check(request: Request) -> None:
    """What every reader promises of every request."""
    prompts = (request.messages, request.text, request.token_ids, request.block_hashes)
    assert sum(prompt is not None for prompt in prompts) == 1
    assert any(prompts)
    assert isinstance(request.id, str) and request.id
    assert request.arrival is None or (isinstance(request.arrival, float) and math.isfinite(request.arrival))
    assert request.output_tokens is None or request.output_tokens >= 0
    assert (request.block_hashes is None) == (request.hash_block_size is None)
    if request.block_hashes is not None:
        assert request.hash_block_size is not None and request.prompt_tokens is not None
        assert len(request.block_hashes) == -(-request.prompt_tokens // request.hash_block_size)
    for message in request.messages or ():
        assert message["role"] in ROLES
        assert isinstance(message.get("content"), str | list | None)
        has_media([message])
        for part in message.get("content") or ():
            media_digest(part)
    msgspec.json.encode(request)


READABLE = [known for known in FORMATS if known.read is not None]


@pytest.mark.parametrize("known", READABLE, ids=lambda known: known.name)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_nothing_but_named_errors_comes_out(known: Format, seed: int) -> None:
    fuzz(known, seed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Fuzzes each reader; ends at the first input that breaks one."
    )
    parser.add_argument("--inputs", type=int, default=100_000, help="in all, spread evenly over the formats")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    each = -(-options.inputs // len(READABLE))
    slowest = (0.0, "")
    begin = time.process_time()
    for known in READABLE:
        for seed in range(options.seed, options.seed + each):
            start = time.process_time()
            try:
                fuzz(known, seed)
            except BaseException:
                sys.stderr.write(f"broken by {known.name}, seed {seed}\n")
                raise
            slowest = max(slowest, (time.process_time() - start, f"{known.name}, seed {seed}"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    inputs, cpu = each * len(READABLE), time.process_time() - begin
    sys.stdout.write(
        f"{inputs} inputs over {len(READABLE)} formats, no traceback; {cpu:.0f} s of CPU, "
        f"slowest {slowest[0]:.2f} s ({slowest[1]}), peak memory {peak} MiB\n"
    )


if __name__ == "__main__":
    main()
