"""Reading big and broken traces: CPU seconds, peak memory, and whether every rejected line was kept whole.

(a) the bundled trace against plain gzip and JSON decoding of the same bytes, median of interleaved rounds;
(b) 300 MB with one line of 200 MB, read, and rejected by a limit of 1 MB; (c) a million lines, a third of
them broken in six ways. Each of (b) and (c) is a process of its own. About two minutes; 500 MB of disk.
"""

from __future__ import annotations

import gzip
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from kvtune.tokenization.reading import MAX_LINE_BYTES, read_trace
from kvtune.tokenization.rejects import Rejection

SAMPLE = Path(__file__).parents[1] / "samples" / "airline.jsonl.gz"
ROUNDS = 7
LONG_LINE_BYTES = 200 << 20
LONG_FILE_BYTES = 300 << 20
LINES = 1_000_000


def good_line(number: int, content: str | None = None) -> bytes:
    content = f"question {number} " * 5 if content is None else content
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    line = {"custom_id": str(number), "url": "/v1/chat/completions", "body": body, "timestamp": number / 2}
    return json.dumps(line).encode()


def broken_line(number: int) -> bytes:
    line = good_line(number)
    kinds = (line[: len(line) // 2], b'{"messages": null}', line + line, b"[1]", b'{"a": NaN', b"\xff" + line)
    return kinds[number % len(kinds)]


def lines_with_a_long_one() -> Iterator[bytes]:
    written = number = 0
    while written < LONG_FILE_BYTES - LONG_LINE_BYTES:
        line = good_line(number)
        yield line
        written += len(line) + 1
        number += 1
    yield good_line(number, "word " * (LONG_LINE_BYTES // 5))


def lines_of_which_a_third_is_broken() -> Iterator[bytes]:
    for number in range(LINES):
        yield broken_line(number) if number % 3 == 1 else good_line(number)


def read_here(path: str, limit: int) -> None:
    """What the child does: reads, keeps the rejects beside the trace, prints one line."""
    started = time.process_time()
    with Path(path + ".rejects").open("wb") as kept:

        def keep(rejection: Rejection) -> None:
            for piece in rejection.pieces:
                kept.write(piece)
            kept.write(b"\n")

        result = read_trace([path], max_line_bytes=limit, on_reject=keep)
    cpu = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"  {len(result.requests)} requests, {result.stats.rejected} rejected, {cpu:.1f} s CPU, {peak} MiB")


def read_apart(path: Path, limit: int, wanted: Callable[[Path], Iterator[bytes]]) -> None:
    """Reads in a child, so that its peak memory is its own, and compares what it kept with what is wanted."""
    subprocess.run([sys.executable, __file__, str(path), str(limit)], check=True)
    rejects = Path(f"{path}.rejects")
    with rejects.open("rb") as kept:
        complete = all(kept.readline() == line + b"\n" for line in wanted(path)) and not kept.read(1)
    print(f"  rejects complete: {'yes' if complete else 'NO'}")
    rejects.unlink()


def broken_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if number % 3 == 1:
                yield line.rstrip(b"\n")


def overlong_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            if len(line) > 1 << 20:
                yield line.rstrip(b"\n")


def plain_decode() -> None:
    for line in gzip.decompress(SAMPLE.read_bytes()).splitlines():
        msgspec.json.decode(line)


def cpu_s(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    pairs = [(cpu_s(plain_decode), cpu_s(lambda: read_trace([str(SAMPLE)]))) for _ in range(ROUNDS)]
    plain, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"bundled trace: {ours * 1e3:.0f} ms CPU, {ours / plain:.2f} of gzip and plain decoding")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        with path.open("wb") as file:
            file.writelines(line + b"\n" for line in lines_with_a_long_one())
        print(f"{path.stat().st_size >> 20} MiB with a line of {LONG_LINE_BYTES >> 20} MiB")
        read_apart(path, MAX_LINE_BYTES, lambda _: iter(()))
        read_apart(path, 1 << 20, overlong_lines)
        with path.open("wb") as file:
            file.writelines(line + b"\n" for line in lines_of_which_a_third_is_broken())
        print(f"{LINES} lines, a third of them broken")
        read_apart(path, MAX_LINE_BYTES, broken_lines)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        read_here(sys.argv[1], int(sys.argv[2]))
    else:
        main()
