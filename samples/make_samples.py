"""Makes the bundled traces from two public ones: the first whole conversations of at most ten requests.

    python samples/make_samples.py TAU_AIRLINE.jsonl.gz BFCL.jsonl.gz

The arguments are request logs in the samples' own format (OpenAI batch lines with `timestamp`, `conversation`, `turn`
and `response`); samples/README.md says where the two come from. The same input gives the same bytes.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
AIRLINE_CONVERSATIONS = 14
LONGEST = 10
FUNCTION_REQUESTS = 150

Row = dict[str, Any]


def main(airline: Path, functions: Path) -> None:
    """Write both samples beside this file."""
    write(HERE / "airline.jsonl.gz", first_conversations(read(airline), AIRLINE_CONVERSATIONS))
    write(HERE / "functions.jsonl.gz", read(functions)[:FUNCTION_REQUESTS])


def first_conversations(rows: list[Row], count: int) -> list[Row]:
    """All requests of the first `count` conversations of at most `LONGEST` requests, in the trace's order."""
    requests = Counter(row["conversation"] for row in rows)
    chosen = [name for name, number in requests.items() if number <= LONGEST][:count]
    return [row for row in rows if row["conversation"] in chosen]


def read(path: Path) -> list[Row]:
    """The rows of a compressed trace."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def write(path: Path, rows: list[Row]) -> None:
    """Compressed lines; times count from the first request."""
    start = rows[0]["timestamp"]
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        for row in rows:
            row["timestamp"] = round(row["timestamp"] - start, 3)
            file.write((json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8"))
    print(f"{path.name}: {len(rows)} requests, {path.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
