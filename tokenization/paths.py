"""What a path on the command line means: a file, all files of a folder, those that match a pattern, or a URL."""

from __future__ import annotations

import glob
from pathlib import Path

from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.remote import files_under

_PATTERN = frozenset("*?[")


def files_of(name: str) -> list[str]:
    """The files that a path means, in the order of their names.

    Raises:
        UnusableInputError: a folder or pattern without files.
    """
    if name == "-":
        return [name]
    if "://" in name:
        return files_under(name)
    if Path(name).is_dir():
        found = [
            str(path)
            for path in sorted(Path(name).rglob("*"))
            if path.is_file() and not any(part.startswith(".") for part in path.relative_to(name).parts)
        ]
    elif _PATTERN.isdisjoint(name) or Path(name).exists():
        return [name]
    else:
        found = sorted(path for path in glob.glob(name, recursive=True) if Path(path).is_file())  # noqa: PTH207
    if not found:
        what = "is a folder without files" if Path(name).is_dir() else "matches no file"
        raise UnusableInputError(what, where=name, wanted="trace files")
    return found
