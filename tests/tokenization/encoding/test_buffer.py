"""The buffer of token ids: the same arrays in memory and in a file."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

from kvtune.tokenization.encoding import buffer
from kvtune.tokenization.encoding.buffer import SpillingArrays, TokenBuffer

ROWS = [[1, 2, 3], [], [4], [2**32 - 1, 0], list(range(1000))]


@pytest.mark.parametrize("most", [0, 8, 1 << 20])
def test_what_was_appended_is_there(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(buffer, "MOST_IN_MEMORY", most)
    kept = TokenBuffer()
    for row in ROWS:
        kept.append(np.array(row, dtype=np.uint32))
    assert len(kept) == len(ROWS)
    tokens, offsets = kept.arrays()
    assert offsets.tolist() == [0, 3, 3, 4, 6, 1006]
    assert [tokens[a:b].tolist() for a, b in pairwise(offsets)] == ROWS


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_nothing_at_all_is_an_empty_array(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(buffer, "MOST_IN_MEMORY", most)
    kept = TokenBuffer()
    kept.append(np.zeros(0, dtype=np.uint32))
    assert [len(array) for array in kept.arrays()] == [0, 2]


@pytest.mark.parametrize(("most", "page"), [(0, 8), (0, 4096), (16, 64), (1 << 20, 64)])
def test_spilling_arrays_hold_what_they_were_given(
    monkeypatch: pytest.MonkeyPatch, most: int, page: int
) -> None:
    monkeypatch.setattr(buffer, "MOST_IN_MEMORY", most)
    monkeypatch.setattr(buffer, "_PAGE_BYTES", page)
    arrays = SpillingArrays()
    kept = [arrays.keep(np.array(row, dtype=np.uint32)) for row in ROWS * 3]
    assert [ids.tolist() for ids in kept] == ROWS * 3


FULL = """
import numpy as np, resource, signal
from kvtune.tokenization.encoding import buffer
buffer.MOST_IN_MEMORY = 0
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # as a disk that takes a megabyte more
for kept in (buffer.TokenBuffer().append, buffer.SpillingArrays().keep):
    try:
        kept(np.zeros(1 << 20, dtype=np.uint32))
        print("taken")
    except buffer.NoRoomError as error:
        print(error)
"""


def test_a_full_disk_is_told_of_in_a_line() -> None:
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("no room for token IDs" in line and "set TMPDIR" in line for line in lines)
