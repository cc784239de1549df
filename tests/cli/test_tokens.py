"""`kvtune tokens`: files of token ids that hold what `analyze` sees."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet

from kvtune.tokenization.encode import encode_trace
from kvtune.tokenization.encoding.open_encoder import open_prompt_encoder
from kvtune.tokenization.reading import read_trace

SAMPLES = Path(__file__).parents[2] / "samples"


def test_prompts_and_their_parts_are_those_of_the_analysis(run, tmp_path: Path) -> None:
    log, model = str(SAMPLES / "airline.jsonl.gz"), SAMPLES / "tiny-hybrid"
    done = run("tokens", log, "--model", str(model), "-o", "out")
    assert (done.code, done.out) == (0, "") and "97 requests in 1 file" in done.err
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    trace, _ = encode_trace(read_trace([log]).requests, open_prompt_encoder(model=model))
    assert [row["tokens"] for row in rows] == [trace.prompt(n).tolist() for n in range(len(trace))]
    for number, row in enumerate(rows):
        assert (
            row["part_ends"] == sorted(set(row["part_ends"])) and row["part_ends"][-1] == row["prompt_tokens"]
        )
        parts = [
            name
            for name, start, end in zip(
                row["part_names"], [0, *row["part_ends"]], row["part_ends"], strict=False
            )
            for _ in range(start, end)
        ]
        assert parts == [trace.parts.part_of(number, at) for at in range(row["prompt_tokens"])]
    assert len({name for row in rows for name in row["part_names"]}) >= 4


def test_files_that_are_there_stay_unless_forced(run, tmp_path: Path) -> None:
    line = ["tokens", str(SAMPLES / "airline.jsonl.gz"), "--model", str(SAMPLES / "tiny-hybrid"), "-o", "out"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-00007.arrow").write_text("old")
    (tmp_path / "out" / "mine.txt").write_text("mine")
    refused = run(*line)
    assert refused.code == 2 and "holds part files already" in refused.err and refused.err.count("\n") == 1
    assert run(*line, "--force", "--as", "arrow").code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["mine.txt", "part-00000.arrow"]


def test_a_file_in_the_folder_s_place_is_named(run, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    done = run("tokens", str(SAMPLES / "airline.jsonl.gz"), "-o", "out")
    assert done.code == 2 and "out: is no folder" in done.err
