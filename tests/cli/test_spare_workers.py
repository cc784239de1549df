"""How many workers a command starts before it reads: by the size of the traces and the cores."""

from __future__ import annotations

import pytest

from kvtune.cli import spare_workers
from kvtune.cli.analysis_options import AnalysisOptions
from kvtune.cli.options import filled


@pytest.mark.parametrize(
    ("megabytes", "workers", "spare"),
    [([0.1], None, 0), ([2.5], None, 2), ([1.5, 1.5], None, 3), ([9], 4, 3), ([9], 1, 0)],
)
def test_one_for_each_megabyte_as_far_as_there_are_cores(tmp_path, monkeypatch, megabytes, workers, spare):
    started: list[int] = []
    monkeypatch.setattr(spare_workers, "_usable_cores", lambda: 8)
    monkeypatch.setattr(spare_workers, "standby", lambda count, _imports: started.append(count))
    files = []
    for number, size in enumerate(megabytes):
        path = tmp_path / f"{number}.jsonl"
        with path.open("wb") as file:
            file.truncate(int(size * 2**20))
        files.append(str(path))
    asked = filled(AnalysisOptions, {"workers": workers})
    spare_workers.spare_workers([*files, "-", str(tmp_path / "missing")], asked)
    assert started == [spare]
