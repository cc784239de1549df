"""Break a good trace as real applications do: traces whose culprit is known.

    python tests/data/break_trace.py HOW TRACE.jsonl.gz OUT.jsonl

    date       the system prompt begins with the second of the request
    tools      tools in another order for each request
    truncated  only the last four messages are sent, behind the system prompt
    id         the system prompt begins with an id of the request

Requests of the chat completions batch format, in their order and with their times; nothing else is changed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

KEPT_MESSAGES = 4

Record = dict[str, Any]


def _in_front(record: Record, text: str) -> None:
    first = record["body"]["messages"][0]
    assert first["role"] == "system"
    first["content"] = text + first["content"]


def date(record: Record) -> None:
    now = datetime.fromtimestamp(record["timestamp"], UTC)
    _in_front(record, f"Current date and time: {now:%Y-%m-%d %H:%M:%S} UTC\n\n")


def tools(record: Record) -> None:
    random.Random(record["custom_id"]).shuffle(record["body"]["tools"])


def truncated(record: Record) -> None:
    messages = record["body"]["messages"]
    if len(messages) > 1 + KEPT_MESSAGES:
        record["body"]["messages"] = [messages[0], *messages[-KEPT_MESSAGES:]]


def unique_id(record: Record) -> None:
    _in_front(record, f"Request ID: {hashlib.sha256(record['custom_id'].encode()).hexdigest()[:32]}\n\n")


WAYS: dict[str, Callable[[Record], None]] = {
    "date": date,
    "tools": tools,
    "truncated": truncated,
    "id": unique_id,
}


def break_trace(how: str, source: Path, target: Path, most: int | None = None) -> None:
    """Write a broken copy of a trace, of its first `most` requests."""
    change = WAYS[how]
    with gzip.open(source, "rt") as lines, target.open("w") as out:
        for number, line in enumerate(lines):
            if number == most:
                break
            record = json.loads(line)
            change(record)
            out.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    break_trace(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
