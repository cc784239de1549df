"""What hashing costs at each unit, measured on this machine with the engine's algorithm and a trace's own tokens.

The engine hashes each full unit of a prompt once, chained: digest(parent digest, the unit's ids, extra keys)
over a pickled tuple (vLLM 0.33 `sha256`; the `cbor` variants over canonical CBOR, which is not measured here).
The result is a measurement of a clock and belongs under `measured` in a report.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvtune.tokenization.trace import Int64, TokenTrace

TIMED_ALGO = "sha256"
MINIMUM_HASHES = 2000
MINIMUM_SECONDS = 0.02
_TIMED_LOOKUPS = 20_000
_FIRST_PARENT = b"\0" * 32


@dataclass(frozen=True)
class HashCost:
    """CPU seconds to hash every full unit of the trace once, and how many hashes were timed."""

    seconds: float
    samples: int


@dataclass
class KnownCosts:
    """What was measured on this machine before, and in this run.

    Attributes:
        hashes: unit -> (CPU seconds of one hash, hashes timed for it).
        lookup_s: CPU seconds of one lookup; None: not measured.
        has_grown: whether this run measured something.
    """

    hashes: dict[int, tuple[float, int]] = field(default_factory=dict)
    lookup_s: float | None = None
    has_grown: bool = False


@dataclass(frozen=True)
class PrefixCosts:
    """What finer matching costs here: `HashCost` by unit, and CPU seconds of one lookup."""

    hashes: Mapping[int, HashCost]
    lookup_s: float


def measure_prefix_costs(trace: TokenTrace, units: Sequence[int], known: KnownCosts) -> PrefixCosts:
    """Both, on this thread's clock, as far as they are not known; what is measured is known from then on."""
    unknown = [unit for unit in units if unit not in known.hashes]
    for unit, cost in measure_hash_cost(trace, unknown).items():
        if cost.samples:
            known.hashes[unit] = cost.seconds / hash_positions(trace.prompt_tokens, unit), cost.samples
            known.has_grown = True
    if known.lookup_s is None:
        known.lookup_s = measure_lookup_cost()
        known.has_grown = True
    costs = {unit: known.hashes.get(unit, (0.0, 0)) for unit in units}
    return PrefixCosts(
        {
            unit: HashCost(seconds * hash_positions(trace.prompt_tokens, unit), samples)
            for unit, (seconds, samples) in costs.items()
        },
        known.lookup_s,
    )


def algorithm_caveat(hash_algo: str) -> tuple[str, ...]:
    """A sentence where the server hashes with another algorithm than the one that is timed."""
    if hash_algo == TIMED_ALGO:
        return ()
    return (
        f"Hashing was timed with {TIMED_ALGO}; the server uses {hash_algo}, which may cost less or more.",
    )


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
    timed = {unit: HashCost(0.0, 0) for unit in units}
    unfinished = [unit for unit in timed if hash_positions(trace.prompt_tokens, unit)]
    while unfinished:
        for request in range(len(trace)):
            ids = _ids(trace, request)
            for unit in unfinished:
                seconds, hashes = _hash_prompt(ids, unit, clock)
                timed[unit] = HashCost(timed[unit].seconds + seconds, timed[unit].samples + hashes)
            unfinished = [unit for unit in unfinished if not _is_enough(timed[unit])]
            if not unfinished:
                break
    return {
        unit: HashCost(
            cost.seconds / max(cost.samples, 1) * hash_positions(trace.prompt_tokens, unit), cost.samples
        )
        for unit, cost in timed.items()
    }


def measure_lookup_cost(clock: Callable[[], float] = time.thread_time) -> float:
    """CPU seconds of one lookup of a 36-byte store key (digest and group) in a dict, over 20,000 of them."""
    keys = [hashlib.sha256(index.to_bytes(4)).digest() + b"\0\0\0\0" for index in range(_TIMED_LOOKUPS)]
    table = dict.fromkeys(keys[::2], 0)
    start = clock()
    for key in keys:
        table.get(key)
    return (clock() - start) / _TIMED_LOOKUPS


def _is_enough(cost: HashCost) -> bool:
    return cost.samples >= MINIMUM_HASHES and cost.seconds >= MINIMUM_SECONDS


def _hash_prompt(ids: list[int], unit: int, clock: Callable[[], float]) -> tuple[float, int]:
    """Seconds to hash a prompt's full units, and how many it has."""
    full = len(ids) // unit
    if not full:
        return 0.0, 0
    start = clock()
    parent = _FIRST_PARENT
    for index in range(full):
        piece = (parent, tuple(ids[index * unit : (index + 1) * unit]), None)
        parent = hashlib.sha256(pickle.dumps(piece, protocol=pickle.HIGHEST_PROTOCOL)).digest()
    return clock() - start, full


def _ids(trace: TokenTrace, request: int) -> list[int]:
    ids = trace.prompt(request)
    if trace.span > 1:
        ids = ids.repeat(trace.span)[: int(trace.prompt_tokens[request])]
    values: list[int] = ids.tolist()
    return values
