"""Everything that `analyze` does, all legal units swept, against the package kvlint at one block size.

    python benchmarks/bench_kvlint.py --model DIR --kvlint PATH/TO/kvlint TRACE

kvlint is a public tool that predicts prefix-cache hits of plain models from a request log; it is installed in an
environment of its own (`pip install kvlint`). Both commands start from the log and the same vocabulary, are run in
turn, and every second counts: start-up, loading, reading, rendering, encoding, simulating, reporting.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def bodies_of(trace: str, target: Path) -> None:
    """The log as kvlint reads it: one request body a line, text content only."""
    import msgspec

    from kvtune.tokenization.reading import read_trace

    with target.open("wb") as file:
        for request in read_trace([trace]).requests:
            messages = [
                {"role": message["role"], "content": message.get("content") or ""}
                for message in request.messages or []
            ]
            body = {"model": "model", "messages": messages, "tools": request.tools}
            file.write(
                msgspec.json.encode({key: value for key, value in body.items() if value is not None}) + b"\n"
            )


def timed(command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of a command."""
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, os.times()
    return wall, after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace")
    parser.add_argument("--model", required=True)
    parser.add_argument("--kvlint", required=True)
    parser.add_argument("--block-size", type=int, default=528)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    groups = f"mamba:{options.block_size}*3,full:{options.block_size}"
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "bodies.jsonl"
        bodies_of(options.trace, log)
        ours_command = [sys.executable, "-m", "kvtune", "analyze", options.trace, "--model", options.model]
        ours_command += ["--groups", groups, "--units", "auto"]
        peer_command = [options.kvlint, "analyze", str(log), "--model", options.model, "--engine", "vllm"]
        peer_command += ["--block-size", str(options.block_size)]
        ours, peer = [], []
        for _ in range(options.rounds):
            peer.append(timed(peer_command))
            ours.append(timed(ours_command))
    print(f"{options.trace}: median of {options.rounds}, interleaved")
    for index, name in enumerate(("wall", "cpu")):
        a = statistics.median(run[index] for run in ours)
        b = statistics.median(run[index] for run in peer)
        print(f"  {name:<4}  kvtune {a:6.2f} s   kvlint {b:6.2f} s   ratio {a / b:.3f} (1/{b / a:.1f})")


if __name__ == "__main__":
    main()
