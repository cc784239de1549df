"""Files that are read whole are read no further than is allowed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.small_file import read_small_file


def test_as_much_as_is_allowed_and_not_a_byte_more(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100)
    assert read_small_file(path, 100, "a report") == b"x" * 100
    with pytest.raises(UnusableInputError, match="too large for a report"):
        read_small_file(path, 99, "a report")


def test_a_pipe_that_never_ends_does(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def write() -> None:
        with path.open("wb", buffering=0) as pipe:
            try:
                while True:
                    pipe.write(b"\0" * 65536)
            except BrokenPipeError:
                pass

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(UnusableInputError, match="too large for a model config"):
        read_small_file(path, 1 << 20, "a model config")
    writer.join(10)
    assert not writer.is_alive()


def test_what_cannot_be_opened_says_what_was_wanted(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UnusableInputError, match=r"cannot be read \(found .*, wanted a report\)"):
            read_small_file(path, 1 << 20, "a report")
