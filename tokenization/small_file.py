"""Files that are read whole: configs, templates, reports. Whatever the name leads to, no more is read than allowed."""

from __future__ import annotations

from pathlib import Path

from kvtune.tokenization.errors import UnusableInputError


def read_small_file(path: Path, most_bytes: int, what: str) -> bytes:
    """All bytes of a file; pipes and devices, which have no size to ask for, are read up to the limit.

    Args:
        what: what the file should be, for instance "a report".

    Raises:
        UnusableInputError: missing, unreadable, a folder, or larger.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise UnusableInputError(
            "cannot be read", where=str(path), found=error.strerror or type(error).__name__, wanted=what
        ) from error
    if len(data) > most_bytes:
        raise UnusableInputError(
            f"is too large for {what}", where=str(path), wanted=f"at most {most_bytes >> 20} MiB"
        )
    return data
