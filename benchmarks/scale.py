"""How `analyze` grows: seconds, CPU and memory on generated logs from 10^5 to 10^9 prompt tokens.

    python benchmarks/scale.py --model DIR [--tokens 1e5,1e7,1e8] [--units ...] [--keep FOLDER] [OPTION OF analyze...]

Each log is written by `log_generator` (seeded; a tenth of the tokens is new), then analyzed by the command as people
run it, with two workers. Printed: wall and CPU seconds, tokens a second, the largest anonymous memory of the process
tree (asked every 50 ms), the share of new tokens, and each size against the line through the smallest and itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from log_generator import write_log

UNITS = "16,24,48,88,132,176,264,528"
ANALYZE = [sys.executable, "-m", "kvtune", "analyze", "--quiet", "--workers", "2"]
_EVERY_S = 0.05


class Cost(NamedTuple):
    """What one run takes.

    Attributes:
        wall: seconds.
        cpu: seconds of all its processes.
        anonymous: bytes, the largest anonymous memory of all its processes together.
    """

    wall: float
    cpu: float
    anonymous: int


class _Memory(threading.Thread):
    """Asks Linux for the anonymous memory of a process and all below it, again and again."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self._root = root
        self.largest = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(_EVERY_S):
            self.largest = max(self.largest, sum(map(_anonymous, _tree(self._root))))


def _tree(root: int) -> list[int]:
    found = [root]
    for process in found:
        try:
            children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        except OSError:
            continue
        found += map(int, children)
    return found


def _anonymous(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def run(command: list[str]) -> Cost:
    """What a command costs; its processes' CPU included."""
    before, start = os.times(), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    memory = _Memory(process.pid)
    memory.start()
    if process.wait():
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    wall, after = time.perf_counter() - start, os.times()
    memory.over.set()
    memory.join()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(wall, cpu, memory.largest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", default="1e5,1e7,1e8")
    parser.add_argument("--units", default=UNITS)
    parser.add_argument("--keep", type=Path, help="write logs here, and use those that are there")
    options, more = parser.parse_known_args()
    print("| prompt tokens | requests | log | new | wall | CPU | tokens a second | anonymous memory |")
    print("|---|---|---|---|---|---|---|---|")
    fixed: Cost | None = None
    rates: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for asked in (int(float(one)) for one in options.tokens.split(",")):
            log = (options.keep or Path(folder)) / f"log-{asked}.jsonl"
            if not log.exists():
                with log.open("wb") as file:
                    write_log(file, asked)
            report = Path(folder) / "report.json"
            cost = run(
                [
                    *(*ANALYZE, str(log), "--model", options.model, "--units", options.units),
                    *("--json", str(report), "--force", *more),
                ]
            )
            trace = json.loads(report.read_text())
            tokens, requests = trace["trace"]["prompt_tokens"], trace["trace"]["requests"]
            new = 1 - trace["shared"]["tokens"] / tokens
            fixed = fixed or cost
            print(
                f"| {tokens:,} | {requests:,} | {log.stat().st_size / 1e6:,.0f} MB | {new:.1%} | {cost.wall:.1f} s "
                f"| {cost.cpu:.1f} s | {tokens / cost.wall:,.0f} | {cost.anonymous / 2**20:,.0f} MiB |",
                flush=True,
            )
            rates.append((tokens, max(cost.wall - fixed.wall, 0.0) / tokens * 1e8))
            if options.keep is None:
                log.unlink()
    for tokens, rate in rates[1:]:
        print(f"{tokens:,} tokens: {rate:.1f} s for each 10^8 after the fixed cost")


if __name__ == "__main__":
    main()
