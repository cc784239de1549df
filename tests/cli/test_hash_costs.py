"""What hashing costs is measured once on a machine: kept, found again, and never trusted where it cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvtune.analyzers.hash_cost import KnownCosts, measure_prefix_costs
from kvtune.cli import hash_costs
from kvtune.tokenization import cache
from tests.analyzers.traces import trace_of


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_was_measured_is_not_measured_again() -> None:
    trace = trace_of([[1] * 4096, [2] * 4096])
    known = KnownCosts()
    first = measure_prefix_costs(trace, [16, 32], known)
    assert known.has_grown and set(known.hashes) == {16, 32}
    hash_costs.keep(known)
    again = hash_costs.recall()
    assert (again.hashes, again.lookup_s, again.has_grown) == (known.hashes, known.lookup_s, False)
    second = measure_prefix_costs(trace, [32, 16], again)
    assert not again.has_grown and second.lookup_s == first.lookup_s
    for unit in (16, 32):
        assert second.hashes[unit].seconds == pytest.approx(first.hashes[unit].seconds, rel=1e-12)
        assert second.hashes[unit].samples == first.hashes[unit].samples


def test_a_longer_trace_costs_in_proportion_and_only_new_units_are_timed() -> None:
    known = KnownCosts({16: (1e-6, 2000)}, 1e-7)
    costs = measure_prefix_costs(trace_of([[1] * 160, [2] * 320]), [16, 8], known)
    assert costs.hashes[16].seconds == pytest.approx(30e-6)
    assert known.has_grown and known.hashes[16] == (1e-6, 2000) and known.hashes[8][1] >= 2000
    short = measure_prefix_costs(trace_of([[1, 2]]), [64], known)
    assert (short.hashes[64].seconds, short.hashes[64].samples, 64 in known.hashes) == (0.0, 0, False)


@pytest.mark.parametrize("entry", [b"", b"\xc1", b"\x80"])
def test_an_unusable_entry_is_measured_anew(entry: bytes) -> None:
    hash_costs.keep(KnownCosts({16: (1e-6, 2000)}, 1e-7, has_grown=True))
    (name,) = [path.name for path in (cache.cache_folder() / "hash-costs").iterdir()]
    cache.keep("hash-costs", name, entry)
    assert hash_costs.recall().hashes == {}


def test_nothing_new_writes_nothing() -> None:
    hash_costs.keep(KnownCosts({16: (1e-6, 2000)}, 1e-7))
    assert not (cache.cache_folder() / "hash-costs").exists()
    assert np.isfinite(hash_costs.recall().lookup_s or 0.0)
