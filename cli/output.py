"""Where results go: stdout for reports, stderr for the rest, files that are whole or not there.

A file is written beside its place and moved there; one that exists is kept unless the user forces it, and what a
command reads is kept always. A pipe or device is written into as it stands, never replaced. The
check comes before the work (`claim_files`), so that nobody waits for a report that cannot be written.
Knows streams and files; nothing of what is in them.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

from kvtune.tokenization.errors import UnusableInputError

STDOUT = "-"


def claim_files(
    targets: Iterable[str | None], *, force: bool, inputs: Iterable[str] = (), never_stdout: str | None = None
) -> None:
    """Refuse, before any work, targets that cannot be written.

    Args:
        inputs: files that the command reads. never_stdout: one more target, beside which stdout is the report's.

    Raises:
        UnusableInputError: a file exists and `force` is off, a folder is missing, two targets are one, or a target is
            one of the inputs.
    """
    read = {str(Path(name).resolve()) for name in inputs if name != STDOUT}
    seen: set[str] = set()
    if never_stdout == STDOUT:
        raise UnusableInputError("stdout is for reports", where=STDOUT, wanted="a file name")
    for target in (*targets, never_stdout):
        if target is None:
            continue
        place = target if target == STDOUT else str(Path(target).resolve())
        if place in seen:
            raise UnusableInputError("two outputs go to the same place", where=target)
        if place in read:
            raise UnusableInputError("is read by this command, and would be overwritten", where=target)
        seen.add(place)
        if target != STDOUT:
            _check_place(Path(target), force=force)


def _check_place(path: Path, *, force: bool) -> None:
    if path.is_dir():
        raise UnusableInputError("is a folder", where=str(path), wanted="a file name")
    if _is_stream(path):
        return
    if path.exists() and not path.is_file():
        raise UnusableInputError("is no regular file", where=str(path), wanted="a file name")
    if path.exists() and not force:
        raise UnusableInputError("exists already", where=str(path), way_out="add --force to overwrite it")
    if not path.parent.is_dir():
        raise UnusableInputError("is no folder", where=str(path.parent), way_out="make it first")
    if not os.access(path.parent, os.W_OK):
        raise UnusableInputError("cannot be written to", where=str(path.parent))


def _is_stream(path: Path) -> bool:
    """Whether `path` is a pipe or a character device, such as /dev/stdout or a shell's `>(...)`."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def write_file(target: str, data: bytes, *, force: bool) -> None:
    """Put `data` at `target`, whole or not at all; `-` is stdout.

    Raises:
        UnusableInputError: the file exists and `force` is off, or the system refuses.
    """
    if target == STDOUT:
        write_stdout(data.decode())
        return
    try:
        with writing(target, force=force) as file:
            file.write(data)
    except OSError as error:
        raise UnusableInputError(f"cannot be written: {error.strerror}", where=target) from error


@contextmanager
def writing(target: str, *, force: bool) -> Iterator[BinaryIO]:
    """A file that takes its place when the block ends well, and leaves nothing behind when it does not; `-` is stdout.

    Raises:
        UnusableInputError: the file exists and `force` is off, or its folder takes no files.
    """
    if target == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    path = Path(target)
    _check_place(path, force=force)
    if _is_stream(path):
        with path.open("wb") as file:
            yield file
        return
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(beside).chmod(0o666 & ~_umask())
        Path(beside).replace(path)
    finally:
        Path(beside).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_stdout(text: str) -> None:
    """Print a report. A reader that closes early (`| head`) has what it wanted."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(text: str, *, quiet: bool = False) -> None:
    """One line for the person at the terminal, on stderr."""
    if not quiet:
        sys.stderr.write(f"kvtune: {text}\n")


def has_colour(stream: TextIO) -> bool:
    """Whether to colour what goes to `stream`: terminals only, and never with NO_COLOR or a dumb terminal."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width(stream: TextIO) -> int:
    """Columns of the terminal behind `stream`; 80 where there is none (COLUMNS overrides)."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
