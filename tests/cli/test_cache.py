"""`kvtune cache`: what is kept, and its removal."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtune.tokenization import cache


def test_it_shows_and_removes_what_is_kept(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache.keep("vocabularies", "k", bytes(1_000_000))
    shown = run("cache")
    assert shown.code == 0 and str(tmp_path / "kvtune") in shown.out
    rows = {row[0]: row[1:] for row in map(str.split, shown.out.splitlines()[1:])}
    assert rows["vocabularies"] == ["1", "1.0", "MB"] and rows["step-times"][0] == "0"
    assert "removed 1.0 MB" in run("cache", "--clear").out
    assert cache.load("vocabularies", "k") is None


def test_another_folder_is_used_for_one_command(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "usual"))
    sample = Path(__file__).parents[2] / "samples" / "airline.jsonl.gz"
    model = sample.parent / "tiny-hybrid"
    done = run("tokens", str(sample), "--model", str(model), "-o", "out", "--cache-dir", "mine")
    assert done.code == 0
    assert len(list((tmp_path / "mine" / "vocabularies").iterdir())) == 1
    assert not (tmp_path / "usual").exists()
    assert "mine, at most" in run("cache", "--cache-dir", "mine").out
    assert str(tmp_path / "usual" / "kvtune") in run("cache").out
