"""Folders, patterns, archives and every compression: the records in them, none lost, and nothing without bounds."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from pathlib import Path

import pytest

from kvtune.tokenization.errors import NoUsableRequestError, UnusableInputError
from kvtune.tokenization.reading import ReadResult, read_trace
from kvtune.tokenization.rejects import Rejection


def lines(first: int, count: int) -> bytes:
    rows = [{"text": f"prompt {number}", "timestamp": number} for number in range(first, first + count)]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def read(data: bytes) -> tuple[list[str | None], list[Rejection]]:
    found: list[Rejection] = []
    result = read_trace(["-"], stdin=io.BytesIO(data), on_reject=found.append)
    return texts(result), found


def texts(result: ReadResult) -> list[str | None]:
    return [request.text for request in result.requests]


def tar(files: dict[str, bytes], mode: str = "w") -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return held.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return held.getvalue()


ALL = [f"prompt {number}" for number in range(5)]
FILES = {"logs/a.jsonl": lines(0, 2), "logs/b.jsonl.gz": gzip.compress(lines(2, 2)), "../../c": lines(4, 1)}


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress, gzip.compress])
def test_every_compression_is_told_by_content(pack) -> None:
    assert read(pack(lines(0, 3)) + pack(lines(3, 2))) == (ALL, [])


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_loses_no_record_of_any_member(mode: str) -> None:
    assert read(tar(FILES, mode)) == (ALL, [])


def test_a_zip_gives_its_files_records() -> None:
    assert read(zipped(FILES)) == (ALL, [])


def test_an_archives_documents_and_tables_are_read_as_such() -> None:
    rows = [json.loads(line) for line in lines(0, 2).splitlines()]
    table = b"timestamp,text\n2,prompt 2\n3,prompt 3\n"
    files = {"a.json": json.dumps(rows, indent=1).encode(), "b.csv": table, "c": lines(4, 1)}
    assert read(tar(files))[0] == read(zipped(files))[0]
    assert read(tar(files)) == ([one for one in ALL if one != "x"], [])


def test_names_in_archives_are_shown_and_nothing_is_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, found = read(tar({"../../\x1b[31mevil": b"{bad\n", "a": lines(0, 1)}))
    assert [one.where for one in found] == ["-!../../?[31mevil:1"]
    assert list(tmp_path.iterdir()) == []


def test_one_bad_file_costs_itself_only() -> None:
    data, found = read(tar({"a": b"version https://git-lfs.github.com/spec/v1\noid x\n", "b": lines(0, 2)}))
    assert data == ALL[:2]
    assert "Git LFS pointer" in found[0].found


def test_a_tar_that_breaks_off_gives_what_stands_before() -> None:
    data = tar({"a": lines(0, 2), "b": lines(2, 9000)})
    known, found = read(data[: len(data) // 2])
    assert 1000 < len(known) < 5000
    assert known == [f"prompt {number}" for number in range(len(known))]
    assert found[-1].reason == "corrupt_compression"


def test_a_zip_that_breaks_off_is_named_damaged() -> None:
    data = zipped({"a": lines(0, 2), "b": lines(2, 3)})
    with pytest.raises(NoUsableRequestError, match="damaged"):
        read(data[: len(data) // 2])


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress, lambda data: zipped({"a": data})])
def test_an_absurd_expansion_ends_the_file(pack) -> None:
    packed = pack(lines(0, 1) + b" " * (80 << 20))
    known, found = read(packed)
    assert known == ALL[:1]
    assert [one.reason for one in found] == ["decompression_bomb"]


def test_a_folder_is_one_trace_of_its_files(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / f"2026/12/0{number}/object"
        path.parent.mkdir(parents=True)
        path.write_bytes(lines(number, 1))
    (tmp_path / ".hidden").write_bytes(b"nothing")
    result = read_trace([str(tmp_path)])
    assert texts(result) == ALL
    assert result.stats.files == [str(tmp_path)]
    assert result.stats.notes == [f"Times in {tmp_path} are read as seconds."]


def test_a_pattern_is_the_files_that_match(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.jsonl").write_bytes(lines(number, 1))
    (tmp_path / "other.txt").write_bytes(lines(9, 1))
    assert texts(read_trace([str(tmp_path / "*.jsonl")])) == ALL
    for nothing in (tmp_path / "*.log", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(UnusableInputError, match=r"without files|matches no file"):
            read_trace([str(nothing)])


def test_objects_one_after_another_are_each_a_record() -> None:
    data = b"".join(line for line in lines(0, 5).splitlines())
    assert read(data) == (ALL, [])
    pretty = b"".join(json.dumps(json.loads(line), indent=2).encode() for line in lines(0, 5).splitlines())
    assert read(pretty) == (ALL, [])


def test_a_url_is_read_through_fsspec() -> None:
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    system.pipe("/bucket/a/1.jsonl", lines(0, 2))
    system.pipe("/bucket/a/2.jsonl.gz", gzip.compress(lines(2, 3)))
    assert texts(read_trace(["memory://bucket/a"])) == ALL
    assert texts(read_trace(["memory://bucket/a/1.jsonl"])) == ALL[:2]
    with pytest.raises(UnusableInputError, match="cannot be read"):
        read_trace(["memory://bucket/none"])
