"""Token ids of many sequences in one growing array."""

from __future__ import annotations

import numpy as np

from kvtune.tokenization.trace import Int64, UInt32

_FIRST = 1 << 16


class TokenBuffer:
    """Appends uint32 sequences; amortised constant time and at most half of the memory spare."""

    def __init__(self) -> None:
        self._data: UInt32 = np.empty(_FIRST, dtype=np.uint32)
        self._ends: list[int] = [0]

    def append(self, ids: UInt32) -> None:
        """Add one sequence."""
        start = self._ends[-1]
        end = start + len(ids)
        if end > len(self._data):
            grown = np.empty(max(end, len(self._data) * 3 // 2), dtype=np.uint32)
            grown[:start] = self._data[:start]
            self._data = grown
        self._data[start:end] = ids
        self._ends.append(end)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def arrays(self) -> tuple[UInt32, Int64]:
        """(ids uint32[T], offsets int64[n + 1]). The buffer is done with after this."""
        total = self._ends[-1]
        ids = self._data[:total] if total > len(self._data) * 9 // 10 else self._data[:total].copy()
        return ids, np.array(self._ends, dtype=np.int64)
