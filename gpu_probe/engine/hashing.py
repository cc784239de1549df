"""The chain of prefix hashes that a server computes for each request, computed for real, so that it can be timed.

digest(parent digest, the unit's ids, extra keys) over a pickled tuple, as vLLM 0.33 `sha256` does; each full unit is
hashed once, when its last token is known. Source: `kv_cache_utils: hash_block_tokens`. The digests decide nothing
here: the bookkeeping has exact prefix names.
"""

from __future__ import annotations

import hashlib
import pickle
import time

from kvtune.gpu_probe.engine.step import Int64

FIRST_PARENT = bytes(32)


class HashChain:
    """One request's chain. `seconds` is the CPU time that `extend` took so far."""

    __slots__ = ("digests", "seconds", "unit")

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self.digests: list[bytes] = []
        self.seconds = 0.0

    def extend(self, ids: Int64, known: int) -> None:
        """Hashes the units that became full: the first `known` of `ids` are known."""
        first, last = len(self.digests), known // self.unit
        if first >= last:
            return
        start = time.thread_time()
        unit, digests = self.unit, self.digests
        parent = digests[-1] if digests else FIRST_PARENT
        values = ids[first * unit : last * unit].tolist()
        for begin in range(0, len(values), unit):
            piece = (parent, tuple(values[begin : begin + unit]), None)
            parent = hashlib.sha256(pickle.dumps(piece, protocol=pickle.HIGHEST_PROTOCOL)).digest()
            digests.append(parent)
        self.seconds += time.thread_time() - start
