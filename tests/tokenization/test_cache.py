"""The cache folder: whole entries or none, whoever writes and dies; room; nothing of others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvtune.tokenization import cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "kvtune"


def test_what_is_kept_is_found_again(folder: Path) -> None:
    assert cache.load("vocabularies", "k") is None
    cache.keep("vocabularies", "k", b"entry")
    assert cache.load("vocabularies", "k") == b"entry"
    assert cache.load("step-times", "k") is None
    assert os.listdir(folder / "vocabularies") == ["k"]  # noqa: PTH208


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 40])
def test_a_damaged_entry_counts_as_missing(folder: Path, damage: bytes) -> None:
    cache.keep("vocabularies", "k", b"entry")
    (folder / "vocabularies" / "k").write_bytes(damage)
    assert cache.load("vocabularies", "k") is None
    cache.keep("vocabularies", "k", b"anew")
    assert cache.load("vocabularies", "k") == b"anew"


def test_a_folder_that_takes_no_files_is_done_without(folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file in its place")
    cache.keep("vocabularies", "k", b"entry")
    assert cache.load("vocabularies", "k") is None
    assert sum(one.entries for one in cache.cache_use()) == 0 and cache.clear() == 0


def test_what_was_not_used_for_longest_makes_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_BYTES", 3 * (32 + 10))
    for number, key in enumerate("abc"):
        cache.keep("vocabularies", key, bytes(10))
        os.utime(folder / "vocabularies" / key, (number, number))
    assert cache.load("vocabularies", "a") == bytes(10)  # used now
    cache.keep("step-times", "d", bytes(10))
    assert [cache.load("vocabularies", key) is None for key in "abc"] == [False, True, False]
    assert cache.load("step-times", "d") == bytes(10)


def test_others_folders_beside_it_stay(folder: Path) -> None:
    (folder / "vllm-cpu").mkdir(parents=True)
    (folder / "vllm-cpu" / "python").write_text("somebody else's")
    cache.keep("vocabularies", "k", b"entry")
    assert [(one.kind, one.entries, one.size) for one in cache.cache_use() if one.entries] == [
        ("vocabularies", 1, 37)
    ]
    assert cache.clear() == 37
    assert (folder / "vllm-cpu" / "python").exists() and cache.load("vocabularies", "k") is None


WRITER = """
import sys
from kvtune.tokenization import cache
print("ready", flush=True)
while True:
    for byte in range(256):
        cache.keep("vocabularies", "k", bytes([byte]) * 3_000_000)
"""


def test_writers_that_are_killed_leave_whole_entries(folder: Path) -> None:
    """Two processes write one entry over and over; each is killed, twelve times, wherever it is."""
    for _ in range(12):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
        for _ in range(3):
            entry = cache.load("vocabularies", "k")
            assert entry is None or entry == entry[:1] * 3_000_000
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
        entry = cache.load("vocabularies", "k")
        assert entry is None or entry == entry[:1] * 3_000_000
    left = [path for path in (folder / "vocabularies").iterdir() if path.name != "k"]
    for path in left:
        os.utime(path, (0, 0))  # an hour passes
    cache.keep("vocabularies", "k", b"entry")
    assert not [path for path in left if path.exists()]
