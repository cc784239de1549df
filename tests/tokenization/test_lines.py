"""Splitting against the obvious way: `bytes.split`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvtune.tokenization.lines import LineSplitter, OverlongLine

CHUNKS = st.lists(
    st.lists(st.sampled_from([b"\n", b"a", b"\r", b"\r\n", b"bcd", b"\xe2\x80\xa8"])).map(b"".join)
)


def expected(data: bytes, limit: int) -> list[tuple[int, bytes, bool]]:
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    found = []
    for number, line in enumerate(lines, 1):
        long = len(line) > limit
        found.append((number, line if long or not line.endswith(b"\r") else line[:-1], long))
    return found


@given(CHUNKS, st.integers(0, 8))
def test_same_lines_as_split(chunks: list[bytes], limit: int) -> None:
    found = [
        (number, b"".join(line.pieces), True) if isinstance(line, OverlongLine) else (number, line, False)
        for number, line in LineSplitter(chunks, limit)
    ]
    assert found == expected(b"".join(chunks), limit)


@given(CHUNKS, st.integers(0, 8))
def test_overlong_lines_need_not_be_read(chunks: list[bytes], limit: int) -> None:
    numbers = [number for number, _ in LineSplitter(chunks, limit)]
    assert numbers == [number for number, _, _ in expected(b"".join(chunks), limit)]


def test_many_overlong_lines_are_no_deep_chain() -> None:
    chunks = [b"x" * 10 + b"\n" + b"y" * 10] * 5000
    assert sum(1 for _ in LineSplitter(chunks, 5)) == 5001
