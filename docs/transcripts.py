"""Writes the checked transcripts of README.md and docs/ anew from real runs: `make transcripts`.

A checked block shows a command and what it prints; a line of three dots stands for what is left out. The part before
the first dots is taken up to the blank line where it ended before; every other part is found by its first line, up to
numbers, and keeps its number of lines. The tests compare the blocks with what is printed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- checked -->\n```console\n\$ (.*?)\n)(.*?)(```)", re.DOTALL)
TARGETS = {"make demo": "kvtune analyze samples/airline.jsonl.gz"}
"""Commands that are shown under another name, and what they run."""


def output_of(command: str) -> str:
    """What a shown command prints on stdout, 80 columns wide."""
    words = shlex.split(TARGETS.get(command, command))
    done = subprocess.run(
        [sys.executable, "-m", "kvtune", *words[1:]],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def parts_of(shown: str) -> list[str]:
    """The parts of a transcript between lines of three dots."""
    return re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE)


def renewed(shown: str, printed: str) -> str:
    """The same parts of a transcript, out of `printed`."""
    lines = printed.splitlines(keepends=True)
    parts = parts_of(shown)
    found: list[str] = []
    for number, part in enumerate(parts):
        old = part.splitlines(keepends=True)
        if not old:
            found.append("")
        elif len(parts) == 1:
            found.append(printed)
        else:
            start = next(index for index, line in enumerate(lines) if _shape(line) == _shape(old[0]))
            end = start + len(old)
            if number == 0:  # to the end of the paragraph that it used to end in
                blanks = sum(not line.strip() for line in old)
                ends = [index for index, line in enumerate(lines) if not line.strip()]
                end = ends[blanks - 1] + 1
            found.append("".join(lines[start:end]))
    return "...\n".join(found)


def _shape(line: str) -> str:
    return re.sub(r"[\d,.]+", "0", line).strip()


def main() -> None:
    """Renew every document in place."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text()
        new = BLOCK.sub(lambda found: found[1] + renewed(found[3], output_of(found[2])) + found[4], text)
        if new != text:
            path.write_text(new)


if __name__ == "__main__":
    main()
