"""Traces as Parquet and Arrow files: what is read back is what the trace holds, part by part."""

from __future__ import annotations

import io
from typing import Any, Literal

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from kvtune.tokenization.token_files import file_spans, write_requests
from kvtune.tokenization.trace import TokenTrace
from tests.analyzers.traces import trace_of

PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12]]


def read(trace: TokenTrace, first: int, end: int, form: Literal["parquet", "arrow"] = "parquet") -> list[Any]:
    file = io.BytesIO()
    write_requests(file, trace, first, end, form)
    file.seek(0)
    table = pyarrow.parquet.read_table(file) if form == "parquet" else pyarrow.ipc.open_file(file).read_all()
    rows: list[Any] = table.to_pylist()
    return rows


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_row_holds_its_request(form: Literal["parquet", "arrow"]) -> None:
    trace = trace_of(PROMPTS, arrival=np.array([0.5, np.nan, 2.0]), sessions=["a", None, "b"])
    rows = read(trace, 0, 3, form)
    assert [row["tokens"] for row in rows] == PROMPTS
    assert [row["prompt_tokens"] for row in rows] == [3, 1, 4]
    assert [row["arrival_s"] for row in rows] == [0.5, None, 2.0]
    assert [row["session"] for row in rows] == ["a", None, "b"]
    assert [row["id"] for row in rows] == list(trace.ids)
    assert [(row["part_ends"], row["part_names"]) for row in rows] == [([n], ["user"]) for n in (3, 1, 4)]
    assert all(row["output_tokens"] is row["logged_cached_tokens"] is row["server"] is None for row in rows)


def test_a_later_file_begins_where_the_one_before_ended() -> None:
    trace = trace_of(PROMPTS)
    assert [row["tokens"] for row in [*read(trace, 0, 1), *read(trace, 1, 3)]] == PROMPTS


def test_files_hold_so_many_tokens_and_a_longer_prompt_its_own() -> None:
    offsets = np.array([0, 4, 6, 8, 108, 109])
    assert list(file_spans(offsets, 6)) == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert list(file_spans(offsets, 1000)) == [(0, 5)]
    assert list(file_spans(np.array([0]), 6)) == []
