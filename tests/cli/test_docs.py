"""What the documentation shows exists: commands, flags, files; marked transcripts are what is printed."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from kvtune.cli.app import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
COMMANDS = get_command(app).commands
TRANSCRIPTS = runpy.run_path(str(ROOT / "docs" / "transcripts.py"))

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`(kvtune [^`]+)`(?!`)")
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#]+)")


def shown_commands(path: Path) -> Iterator[str]:
    """Every `kvtune ...` command line of a document, continuation lines joined, comments cut."""
    text = path.read_text()
    for language, block in _FENCE.findall(text):
        if language in ("console", "sh", "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                stripped = line.removeprefix("$ ").split("  #")[0].strip()
                if stripped.startswith("kvtune "):
                    yield stripped
    yield from _INLINE.findall(_FENCE.sub("", text))


SHOWN = [
    pytest.param(path, line, id=f"{path.relative_to(ROOT)}: {line[:60]}")
    for path in DOCUMENTS
    for line in shown_commands(path)
]


@pytest.mark.parametrize(("path", "line"), SHOWN)
def test_shown_commands_and_flags_exist(path: Path, line: str) -> None:
    words = shlex.split(re.split(r"\s[|>&]", line)[0])[1:]
    if words[0].isupper() or words[0].startswith("-"):
        command = get_command(app)
    else:
        assert words[0] in COMMANDS, f"{path}: {line}"
        command = COMMANDS[words[0]]
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {
        "--help",
        "-h",
    }
    own = words[: words.index("--")] if "--" in words else words
    flags = {word.split("=")[0] for word in own if re.match(r"^--?[a-z]", word)}
    assert flags <= known, f"{path}: {line}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    missing = [link for link in _LINK.findall(path.read_text()) if not (path.parent / link).exists()]
    assert missing == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md"]
    assert [page for page in pages if f"]({page})" not in index] == []


def test_readme_shows_the_first_steps() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:40])
    assert "make demo" in first_screen
    assert "make test" in first_screen


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [name for name in COMMANDS if f"| `kvtune {name}" not in readme] == []


def test_make_targets_that_are_shown_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in DOCUMENTS:
        shown = set(re.findall(r"(?:`|\$ )make ([a-z-]+)", path.read_text()))
        assert shown <= targets, path


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        pytest.param(command, shown, id=f"{path.name}: {command}")
        for path in DOCUMENTS
        for _, command, shown, _ in TRANSCRIPTS["BLOCK"].findall(path.read_text())
    ],
)
def test_checked_transcripts_are_what_is_printed(command: str, shown: str) -> None:
    printed = TRANSCRIPTS["output_of"](command)
    for part in TRANSCRIPTS["parts_of"](shown):
        assert part in printed, "run `make transcripts`, and read what changed"
        printed = printed[printed.index(part) + len(part) :]


def test_transcripts_are_renewed_part_by_part() -> None:
    shown = "Sum 1\n\n  about 10\n\n...\nUnits\n  16\n  48\n...\n"
    printed = "Sum 2\n\n  about 20\n  or more\n\nSizes\n  1\n\nUnits\n  32\n  64\n  96\nEnd\n"
    assert TRANSCRIPTS["renewed"](shown, printed) == (
        "Sum 2\n\n  about 20\n  or more\n\n...\nUnits\n  32\n  64\n...\n"
    )
    assert TRANSCRIPTS["renewed"]("old\n", "new\n") == "new\n"


def test_make_demo_is_the_command_whose_transcript_is_checked() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\ndemo:")[1].splitlines()[1]
    assert recipe.replace("$(BIN)/", "").strip().lstrip("@") == TRANSCRIPTS["TARGETS"]["make demo"]


def test_the_readme_has_a_checked_transcript_of_the_demo() -> None:
    blocks = TRANSCRIPTS["BLOCK"].findall((ROOT / "README.md").read_text())
    assert "make demo" in [command for _, command, _, _ in blocks]
