"""Runs that are killed leave a cache that the next run can use: whole entries only, and the same report.

KVTUNE_KILLS=50 for more of them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvtune.tokenization import cache

SAMPLES = Path(__file__).parents[2] / "samples"
KILLS = int(os.environ.get("KVTUNE_KILLS", "10"))


def started(report: Path, **more: Any) -> subprocess.Popen[bytes]:
    line = ["analyze", str(SAMPLES / "airline.jsonl.gz"), "--quiet", "--json", str(report), "--force"]
    return subprocess.Popen([sys.executable, "-m", "kvtune", *line], stdout=subprocess.DEVNULL, **more)


def told(report: Path) -> dict[str, Any]:
    """A report without what a clock decided."""
    found: dict[str, Any] = json.loads(report.read_text())
    del found["measured"], found["command"]
    return found


@pytest.mark.slow
def test_runs_killed_at_any_moment_leave_whole_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    begun = time.monotonic()
    assert started(tmp_path / "first.json").wait() == 0
    took = time.monotonic() - begun
    wanted = told(tmp_path / "first.json")
    draw = random.Random(0)
    for number in range(KILLS):
        if number % 5 == 0:
            cache.clear()  # what is kept is written again
        run = started(tmp_path / "killed.json", start_new_session=True)
        time.sleep(draw.uniform(0.2, 1.0) * took)
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        for kind in cache.KINDS:
            for path in (cache.cache_folder() / kind).glob("*"):
                assert path.name.startswith(".") or cache.load(kind, path.name) is not None
        if (tmp_path / "killed.json").exists():
            assert told(tmp_path / "killed.json") == wanted
    assert started(tmp_path / "last.json").wait() == 0
    assert told(tmp_path / "last.json") == wanted
