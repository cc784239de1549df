"""What hashing costs at each unit, measured on this machine with the engine's algorithm and the trace's own tokens.

The engine hashes each full unit of a prompt once, chained: digest(parent digest, the unit's ids, extra keys)
over a pickled tuple (vLLM 0.33 `sha256`; the `cbor` variants over canonical CBOR, which is not measured here).
The result is a measurement of a clock and belongs under `measured` in a report.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvtune.tokenization.trace import Int64, TokenTrace

MINIMUM_HASHES = 2000
MINIMUM_SECONDS = 0.02
_TIMED_LOOKUPS = 20_000
_FIRST_PARENT = b"\0" * 32


@dataclass(frozen=True)
class HashCost:
    """CPU seconds to hash every full unit of the trace once, and how many hashes were timed."""

    seconds: float
    samples: int


def hash_positions(prompt_tokens: Int64, unit: int) -> int:
    """How many block hashes the engine computes for the prompts: the sum of floor(length / unit)."""
    return int((prompt_tokens // unit).sum())


def measure_hash_cost(
    trace: TokenTrace, units: Sequence[int], clock: Callable[[], float] = time.thread_time
) -> dict[int, HashCost]:
    """Time a sample of the trace's own chained hashes at each unit: at least 2,000 and 20 ms each, or all there are.

    Units of a block-hash trace are timed on the interned hashes' ids repeated to the unit's length, since the
    ids behind them are unknown; the work is the same.
    """
    return {unit: _measure(trace, unit, clock) for unit in units}


def measure_lookup_cost(clock: Callable[[], float] = time.process_time) -> float:
    """CPU seconds of one lookup of a 36-byte store key (digest and group) in a dict, over 20,000 of them."""
    keys = [hashlib.sha256(index.to_bytes(4)).digest() + b"\0\0\0\0" for index in range(_TIMED_LOOKUPS)]
    table = dict.fromkeys(keys[::2], 0)
    start = clock()
    for key in keys:
        table.get(key)
    return (clock() - start) / _TIMED_LOOKUPS


def _measure(trace: TokenTrace, unit: int, clock: Callable[[], float]) -> HashCost:
    positions = hash_positions(trace.prompt_tokens, unit)
    if positions == 0:
        return HashCost(0.0, 0)
    done, elapsed = 0, 0.0
    while done < MINIMUM_HASHES or elapsed < MINIMUM_SECONDS:
        before = done
        for request in range(len(trace)):
            ids = _ids(trace, request)
            full = len(ids) // unit
            if not full:
                continue
            start = clock()
            parent = _FIRST_PARENT
            for index in range(full):
                piece = (parent, tuple(ids[index * unit : (index + 1) * unit]), None)
                parent = hashlib.sha256(pickle.dumps(piece, protocol=pickle.HIGHEST_PROTOCOL)).digest()
            elapsed += clock() - start
            done += full
            if done >= MINIMUM_HASHES and elapsed >= MINIMUM_SECONDS:
                break
        if done == before:
            break
    return HashCost(elapsed / done * positions, done)


def _ids(trace: TokenTrace, request: int) -> list[int]:
    ids = trace.prompt(request)
    if trace.span > 1:
        ids = ids.repeat(trace.span)[: int(trace.prompt_tokens[request])]
    values: list[int] = ids.tolist()
    return values
