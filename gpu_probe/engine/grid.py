"""`ExactGrid`: the rules that make a token's arithmetic independent of how its sequence was cut and batched.

Without them a token's logits depend in their last bits on the chunk it was computed in. Each rule fixes one
cause, found by experiment (float32, CPU):

- `scan_grid`: chunks of a recurrent scan start at multiples of `scan_chunk` counted from the sequence's start.
- `chunk_replay`: a state is kept at its last chunk boundary with the inputs since, and the open chunk is run
  again; a token-by-token recurrence rounds otherwise.
- `attention_grid`: queries in tiles at absolute multiples of `query_tile`, keys from and to absolute multiples of
  `key_tile` (the flash kernel's own tile); blocks that are masked as a whole leave its result unchanged.
- `matmul_tile`: matrix products in tiles of `matmul_rows` rows (the library picks kernels by the row count).
- `padded_rows`: elementwise functions see multiples of `row_multiple` rows, or of tokens in scan chunks (vector loops
  end in scalar code).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExactGrid:
    """Which rules hold (all, unless a test wants to see one fail) and their sizes in tokens or rows."""

    scan_grid: bool = True
    chunk_replay: bool = True
    attention_grid: bool = True
    matmul_tile: bool = True
    padded_rows: bool = True
    scan_chunk: int = 16
    query_tile: int = 16
    key_tile: int = 512
    matmul_rows: int = 64
    row_multiple: int = 32


FAST_SCAN_CHUNK = {"cpu": 32, "cuda": 64}
"""Tokens per chunk of a scan where no grid is asked for, by device."""


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple
