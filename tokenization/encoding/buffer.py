"""Token ids of many sequences in one growing array."""

from __future__ import annotations

import numpy as np

from kvtune.tokenization.trace import Int64, UInt32


class TokenBuffer:
    """Appends uint32 sequences; amortised constant time, and an eighth of the memory spare at most."""

    def __init__(self) -> None:
        self._data = bytearray()  # grows in place where the system can map its pages elsewhere
        self._ends: list[int] = [0]

    def append(self, ids: UInt32) -> None:
        """Add one sequence."""
        self._data += np.ascontiguousarray(ids, dtype=np.uint32).data
        self._ends.append(self._ends[-1] + len(ids))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def arrays(self) -> tuple[UInt32, Int64]:
        """(ids uint32[T], offsets int64[n + 1]). The buffer is done with after this."""
        return np.frombuffer(self._data, dtype=np.uint32), np.array(self._ends, dtype=np.int64)
