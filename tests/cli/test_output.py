"""Files that are whole or not there, and streams."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from kvtune.cli.output import claim_files, has_colour, terminal_width, write_file
from kvtune.tokenization.errors import UnusableInputError


class Stream:
    """Just enough of a stream."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def fileno(self) -> int:
        raise OSError("no file")


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    with pytest.raises(UnusableInputError, match="--force"):
        write_file(str(path), b"new", force=False)
    assert path.read_text() == "old"
    write_file(str(path), b"new", force=True)
    assert path.read_text() == "new"
    assert [item.name for item in tmp_path.iterdir()] == ["out.json"]


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")

    def fail(*_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(UnusableInputError, match="No space left"):
        write_file(str(path), b"new", force=True)
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["out.json"]


def test_files_are_claimed_before_the_work(tmp_path: Path) -> None:
    present = tmp_path / "a.json"
    present.write_text("x")
    for targets, words in (
        ([str(present)], "exists already"),
        ([str(tmp_path / "no" / "b.json")], "is no folder"),
        ([str(tmp_path)], "is a folder"),
        ([str(tmp_path / "c"), str(tmp_path / "." / "c")], "same place"),
        (["-", "-"], "same place"),
    ):
        with pytest.raises(UnusableInputError, match=words):
            claim_files(targets, force=False)
    claim_files([str(present), "-", None, str(tmp_path / "d")], force=True)


def test_what_is_read_is_never_overwritten(tmp_path: Path, run, stored: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("x")
    (tmp_path / "link.jsonl").symlink_to(trace)
    for target in (trace, tmp_path / "." / "trace.jsonl", tmp_path / "link.jsonl"):
        with pytest.raises(UnusableInputError, match="is read by this command"):
            claim_files([str(target)], force=True, inputs=["-", str(trace)])
    before = stored.read_bytes()
    for command in (["report"], ["compare", str(stored)]):
        assert run(*command, str(stored), "--json", str(stored), "--force").code == 2
    assert stored.read_bytes() == before


def test_a_pipe_is_written_into_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    claim_files([str(pipe)], force=False)
    write_file(str(pipe), b"report", force=True)
    reader.join(timeout=60)
    assert found == [b"report"]
    assert pipe.is_fifo()


def test_a_full_device_is_said_and_not_replaced() -> None:
    device = Path("/dev/full")
    if not device.is_char_device():
        pytest.skip("there is no /dev/full")
    with pytest.raises(UnusableInputError, match="No space left"):
        write_file(str(device), b"report", force=False)
    assert device.is_char_device()


def test_json_on_stdout_stands_alone(run, stored: Path) -> None:
    done = run("report", str(stored), "--json", "-")
    assert json.loads(done.out)["schema"] == "kvtune.report/1"


def test_files_and_terminal_together(run, stored: Path, tmp_path: Path) -> None:
    done = run("report", str(stored), "--md", "out.md", "--json", "again.json")
    assert done.code == 0
    assert "--prefix-match-unit 96" in done.out
    assert (tmp_path / "out.md").read_text().startswith("## Set")
    assert (tmp_path / "again.json").read_bytes() == stored.read_bytes()
    assert run("report", str(stored), "--md", "out.md").code == 2


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert has_colour(Stream(True))
    assert not has_colour(Stream(False))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colour(Stream(True))


def test_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "123")
    assert terminal_width(Stream(False)) == 123
    monkeypatch.setenv("COLUMNS", "nonsense")
    assert terminal_width(Stream(False)) == 80
