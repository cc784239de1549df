"""Big and broken files in small: memory stays bounded and the rejects are complete.

`benchmarks/bench_reading.py` does the same at full size (300 MB with a line of 200 MB, a million lines).
"""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Iterator

from kvtune.tokenization.reading import read_trace
from kvtune.tokenization.rejects import Rejection

MEBIBYTE = 1 << 20


def good(number: int) -> bytes:
    return json.dumps(
        {"custom_id": str(number), "url": "/v1/completions", "body": {"prompt": f"{number} "}}
    ).encode()


class Stream(io.RawIOBase):
    """Bytes made as they are read: what a reader holds is its own."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = b""

    def read(self, size: int = -1) -> bytes:
        while len(self._left) < size and (piece := next(self._pieces, None)) is not None:
            self._left += piece
        data, self._left = self._left[:size], self._left[size:]
        return data


def peak_bytes(work: object) -> int:
    tracemalloc.start()
    try:
        work()  # type: ignore[operator]
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_an_overlong_line_is_never_held() -> None:
    def pieces() -> Iterator[bytes]:
        yield good(0) + b"\n"
        yield b'{"prompt": "'
        for _ in range(64):
            yield b"x" * MEBIBYTE
        yield b'"}\n' + good(1)

    kept = 0

    def keep(rejection: Rejection) -> None:
        nonlocal kept
        for piece in rejection.pieces:
            kept += len(piece)

    def work() -> None:
        result = read_trace(["-"], stdin=Stream(pieces()), max_line_bytes=MEBIBYTE, on_reject=keep)  # type: ignore[arg-type]
        assert [request.id for request in result.requests] == ["0", "1"]

    assert peak_bytes(work) < 16 * MEBIBYTE
    assert kept == 64 * MEBIBYTE + len('{"prompt": ""}')


def test_a_long_line_within_the_limit_costs_a_few_times_its_length() -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"prompt": "'
        for _ in range(24):
            yield b"x" * MEBIBYTE
        yield b'"}\n' + good(1)

    def work() -> None:
        result = read_trace(["-"], stdin=Stream(pieces()))  # type: ignore[arg-type]
        assert len(result.requests[0].text or "") == 24 * MEBIBYTE

    assert peak_bytes(work) < 5 * 24 * MEBIBYTE


def test_many_broken_lines_leave_nothing_behind() -> None:
    lines = 3000
    broken = (b'{"prompt": "' + b"y" * 30_000, b"[1]", b'{"prompt": ""}')
    wanted = [broken[number % 3] for number in range(lines)]

    def pieces() -> Iterator[bytes]:
        for number in range(lines):
            yield wanted[number] + b"\n"
        yield good(0)

    kept: list[int] = []

    def work() -> None:
        seen = iter(wanted)

        def keep(rejection: Rejection) -> None:
            assert b"".join(rejection.pieces) == next(seen)
            kept.append(1)

        read_trace(["-"], stdin=Stream(pieces()), on_reject=keep)  # type: ignore[arg-type]

    assert peak_bytes(work) < 12 * MEBIBYTE
    assert len(kept) == lines


def test_what_repeats_is_held_once() -> None:
    tools = [
        {"type": "function", "function": {"name": f"tool{n}", "description": "d" * 3000}} for n in range(20)
    ]

    def pieces() -> Iterator[bytes]:
        history = []
        for turn in range(200):
            history.append({"role": "user", "content": f"{turn} " * 200})
            yield json.dumps({"messages": history, "tools": tools}).encode() + b"\n"

    def work() -> None:
        assert len(read_trace(["-"], stdin=Stream(pieces())).requests) == 200  # type: ignore[arg-type]

    assert peak_bytes(work) < 16 * MEBIBYTE  # the file is 28 MiB, its values four times that
