"""Every package folder is listed by name, and the rooms import in one direction only."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOMS = ("analyzers", "cli", "gpu_probe", "tokenization")


def test_every_package_is_listed() -> None:
    found = {"kvtune"} | {
        ".".join(["kvtune", *path.parent.relative_to(ROOT).parts])
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if path.parent.name != "__pycache__"
    }
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(found)


def test_every_data_file_is_shipped() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["kvtune"]
    shipped = {path for pattern in patterns for path in ROOT.glob(pattern)}
    data = {
        path
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert data - shipped == set()


def test_dependencies_are_pinned_for_the_checks() -> None:
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    extras = PROJECT["project"]["optional-dependencies"]
    for requirement in [
        *PROJECT["project"]["dependencies"],
        *(one for extra in extras.values() for one in extra),
    ]:
        name = requirement.split(">")[0].split("=")[0].strip().lower()
        assert name in pinned, requirement
