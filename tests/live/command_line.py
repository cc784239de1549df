"""kvtune as a user starts it: a process of its own, with what it printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start(*arguments: str) -> subprocess.Popen[str]:
    """Running, with stdout and stderr as pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", "kvtune", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "build" / "links"), "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str, timeout: float) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    process = start(*arguments)
    try:
        out, errors = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return process.returncode, out, errors
