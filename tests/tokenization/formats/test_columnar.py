"""Parquet and Arrow: the same rows give the same requests as JSON lines; without pyarrow the way out is named."""

from __future__ import annotations

import builtins
import gzip
import io
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kvtune.tokenization.errors import MissingDependencyError, UnusableInputError
from kvtune.tokenization.reading import read_trace
from kvtune.tokenization.rejects import Rejection

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

DATA = Path(__file__).parents[2] / "data" / "formats"


def table_file(path: Path, rows: list[dict[str, Any]]) -> Path:
    table = pyarrow.Table.from_pylist(rows)
    if path.suffix == ".arrow":
        with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    else:
        parquet.write_table(table, path)
    return path


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


@pytest.mark.parametrize("name", ["baseten.jsonl", "mooncake.jsonl", "lmsys.jsonl", "prompts.jsonl"])
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_same_requests_as_from_lines(tmp_path: Path, name: str, suffix: str) -> None:
    path = table_file(tmp_path / f"trace{suffix}", rows_of(name))
    wanted = read_trace([str(DATA / name)])
    found = read_trace([str(path)])
    assert found.stats.formats == wanted.stats.formats
    for one, other in zip(found.requests, wanted.requests, strict=True):
        assert (one.messages, one.text, one.token_ids, one.block_hashes) == (
            other.messages,
            other.text,
            other.token_ids,
            other.block_hashes,
        )
        assert (one.arrival, one.session, one.output_tokens) == (
            other.arrival,
            other.session,
            other.output_tokens,
        )


def test_a_column_of_requests_and_of_times(tmp_path: Path) -> None:
    rows = [
        {
            "timestamp": datetime(2026, 1, 2, 3, 4, second),
            "request": json.dumps({"model": "m", "prompt": text}),
        }
        for second, text in ((6, "b"), (5, "a"))
    ]
    result = read_trace([str(table_file(tmp_path / "t.parquet", rows))])
    assert [(one.text, one.arrival) for one in result.requests] == [("a", 1767323045.0), ("b", 1767323046.0)]
    assert result.stats.format == "request-column"


def test_bad_rows_are_rejected_alone(tmp_path: Path) -> None:
    path = table_file(
        tmp_path / "t.parquet", [{"prompt": "a"}, {"prompt": ""}, {"prompt": "b"}, {"prompt": None}]
    )
    found: list[Rejection] = []
    kept: list[bytes] = []

    def keep(rejection: Rejection) -> None:
        found.append(rejection)
        kept.append(b"".join(rejection.pieces))

    result = read_trace([str(path)], on_reject=keep)
    assert [one.text for one in result.requests] == ["a", "b"]
    assert [(one.where, one.reason) for one in found] == [
        (f"{path}:2", "empty_prompt"),
        (f"{path}:4", "unknown_format"),
    ]
    assert kept[0] == b'{"prompt":""}'


def test_compressed_and_from_stdin(tmp_path: Path) -> None:
    data = table_file(tmp_path / "t.parquet", [{"prompt": "a"}]).read_bytes()
    for packed in (data, gzip.compress(data)):
        assert [one.text for one in read_trace(["-"], stdin=io.BytesIO(packed)).requests] == ["a"]


def test_a_cut_gzip_around_it_is_refused_by_name(tmp_path: Path) -> None:
    data = table_file(tmp_path / "t.parquet", [{"prompt": "a"}]).read_bytes()
    with pytest.raises(UnusableInputError, match="not a readable Parquet"):
        read_trace(["-"], stdin=io.BytesIO(gzip.compress(data)[:-30]))


@pytest.mark.parametrize("cut", [4, 40, -20])
def test_a_broken_file_is_refused_by_name(tmp_path: Path, cut: int) -> None:
    path = table_file(tmp_path / "t.parquet", [{"prompt": "a"}])
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UnusableInputError, match=r"t\.parquet: not a readable Parquet"):
        read_trace([str(path)])


def test_without_pyarrow_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table_file(tmp_path / "t.parquet", [{"prompt": "a"}])
    genuine = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return genuine(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"kvtune\[parquet\]") as caught:
        read_trace([str(path)])
    assert caught.value.exit_code == 4
