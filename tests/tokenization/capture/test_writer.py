"""The writer where the disk misbehaves: slow, full, and a process that is killed."""

from __future__ import annotations

import errno
import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import kvtune
from kvtune.tokenization.capture import writer as writing
from kvtune.tokenization.capture.exchange import Exchange, MemoryBudget
from kvtune.tokenization.capture.writer import TraceWriter


def exchange(budget, text, size=0):
    made = Exchange("/v1/chat/completions", 1.5, status=200, complete=True)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text + "x" * size}]})
    made.keep(body.encode(), made.body, budget)
    return made


def texts(path):
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        return [json.loads(line)["body"]["messages"][0]["content"] for line in file]


def wait_for(condition, seconds=5.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.01)


def test_a_slow_disk_costs_records_and_never_a_wait(tmp_path, monkeypatch):
    may_write = threading.Event()
    real = os.pwrite

    def slow(descriptor, data, offset):
        may_write.wait(10)
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", slow)
    monkeypatch.setattr(writing, "_LINGER_S", 0.0)
    budget, warnings = MemoryBudget(50_000), []
    writer = TraceWriter(tmp_path / "t.jsonl", budget, warnings.append)
    started = time.monotonic()
    for number in range(100):
        writer.put(exchange(budget, f"{number:03}", size=1_000))
    assert time.monotonic() - started < 1.0
    assert budget.held_bytes <= 50_000
    may_write.set()
    counts = writer.close()
    assert counts.written + counts.lost["memory bound reached"] == 100
    assert 40 <= counts.written < 50  # as many as the bound holds
    assert [text[:3] for text in texts(tmp_path / "t.jsonl")] == [f"{n:03}" for n in range(counts.written)]
    assert budget.held_bytes == 0
    assert len(warnings) == 1 and "50000 bytes" in warnings[0]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_a_disk_that_was_full_for_a_while_loses_nothing(tmp_path, monkeypatch, name):
    full, failed = threading.Event(), threading.Event()
    real = os.pwrite

    def filling(descriptor, data, offset):
        if not full.is_set():
            return real(descriptor, data, offset)
        if not failed.is_set():
            failed.set()
            return real(descriptor, data[:10], offset)  # what still fitted
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", filling)
    monkeypatch.setattr(writing, "_LINGER_S", 0.0)
    monkeypatch.setattr(writing, "_RETRY_S", 0.01)
    budget, warnings, path = MemoryBudget(1 << 20), [], tmp_path / name
    writer = TraceWriter(path, budget, warnings.append)
    writer.put(exchange(budget, "before"))
    wait_for(lambda: writer.counts.written == 1)
    full.set()
    writer.put(exchange(budget, "during"))
    wait_for(lambda: warnings)
    assert texts(path) == ["before"]  # the torn end is cut off
    writer.put(exchange(budget, "later"))
    full.clear()
    assert writer.close().written == 3
    assert texts(path) == ["before", "during", "later"]
    assert len(warnings) == 1 and "No space left" in warnings[0]


def test_a_disk_that_stays_full_is_said_and_what_was_written_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "_LINGER_S", 0.0)
    budget, path = MemoryBudget(1 << 20), tmp_path / "t.jsonl.gz"
    writer = TraceWriter(path, budget, lambda _: None)
    writer.put(exchange(budget, "before"))
    wait_for(lambda: writer.counts.written == 1)

    def refuse(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", refuse)
    for number in range(3):
        writer.put(exchange(budget, str(number)))
    counts = writer.close()
    assert (counts.written, counts.lost) == (1, {"could not be written": 3})
    assert texts(path) == ["before"]
    assert budget.held_bytes == 0


def test_a_bug_costs_one_record(tmp_path, monkeypatch):
    real = writing.to_line

    def buggy(made, conversations):
        if b"bad" in made.body:
            raise ZeroDivisionError
        return real(made, conversations)

    monkeypatch.setattr(writing, "to_line", buggy)
    budget, warnings, path = MemoryBudget(1 << 20), [], tmp_path / "t.jsonl"
    writer = TraceWriter(path, budget, warnings.append)
    for text in ("a", "bad", "b"):
        writer.put(exchange(budget, text))
    assert writer.close().lost == {"internal error (ZeroDivisionError)": 1}
    assert texts(path) == ["a", "b"]
    assert len(warnings) == 1


CHILD = """
import sys, time
from pathlib import Path
from kvtune.tokenization.capture.exchange import Exchange, MemoryBudget
from kvtune.tokenization.capture.writer import TraceWriter

budget = MemoryBudget(1 << 24)
writer = TraceWriter(Path(sys.argv[1]), budget, lambda text: print(text, flush=True))
for line in sys.stdin:
    made = Exchange("/v1/completions", 0.0, status=200, complete=True)
    made.keep(b'{"model": "m", "prompt": "' + line.strip().encode() + b'"}', made.body, budget)
    before = writer.counts.written
    writer.put(made)
    while "wait" in line and writer.counts.written == before:
        time.sleep(0.01)
    print("put", flush=True)
print(writer.close(), flush=True)
"""


def start_child(path):
    environment = os.environ | {"PYTHONPATH": str(Path(kvtune.__file__).parent.parent)}
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def tell(child, line):
    child.stdin.write(line + "\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


def prompts(path):
    with gzip.open(path, "rt") as file:
        return [json.loads(line)["body"]["prompt"] for line in file]


def test_a_killed_process_leaves_a_readable_file(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    with start_child(path) as child:
        assert tell(child, "wait one") == "put"
        assert tell(child, "wait two") == "put"
        child.send_signal(signal.SIGKILL)
    assert prompts(path) == ["wait one", "wait two"]


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit")
def test_a_real_limit_on_the_file_that_is_lifted_again(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    with start_child(path) as child:
        assert tell(child, "wait one") == "put"
        _, hard = resource.prlimit(child.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (path.stat().st_size + 5, hard))
        assert tell(child, "two") == "put"
        assert "File too large" in child.stdout.readline()
        assert prompts(path) == ["wait one"]
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (hard, hard))
        told, _ = child.communicate("three\n", timeout=10)
        assert "written=3" in told
    assert prompts(path) == ["wait one", "two", "three"]
