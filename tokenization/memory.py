"""Freed memory back to the system: glibc keeps what many small objects left in pieces, a quarter of a large trace's."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def give_back() -> None:
    """Ask the C library to return free pages; where it knows no such call, nothing happens."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
