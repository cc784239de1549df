"""The search for the largest rate that meets objectives: worked by hand, against a linear scan, and side by side."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtune.gpu_probe.rate_search import CEILING, RateSearch, search_together


def tried(limit: float, *, resolution: float = 1.15, most_runs: int = 10, guess: float | None = None):
    """A search against a server that meets every rate up to `limit`, and the rates that it tried."""
    search = RateSearch(resolution, most_runs, guess)
    rates = []
    while (rate := search.next_rate) is not None:
        rates.append(rate)
        search.tell(met=rate <= limit)
    return search, rates


def test_without_a_guess_by_hand():
    search, rates = tried(10.0)
    assert rates[:4] == [1.0, 2.0, 8.0, 64.0]
    # Geometric middles of the bracket: 22.6, 13.5 and 10.4 are missed, 9.1 is met, and 10.4 / 9.1 is below 1.15.
    assert [round(rate, 1) for rate in rates[4:]] == [22.6, 13.5, 10.4, 9.1]
    assert (round(search.met, 1), round(search.missed, 1)) == (9.1, 10.4)


def test_a_good_guess_saves_runs():
    search, rates = tried(10.0, guess=9.6)
    assert [round(rate, 2) for rate in rates] == [1.0, 9.6, 12.0, 10.73]
    assert search.met == 9.6
    assert search.runs == 4


@pytest.mark.parametrize("guess", [None, 0.0, 0.3, 5.0, 500.0])
def test_the_ends_of_the_scale(guess):
    search, rates = tried(0.99, guess=guess)
    assert (search.met, search.missed, rates) == (0.0, 1.0, [1.0])  # not even the trace's own rate
    search, rates = tried(1e9, guess=guess)
    assert (search.met, search.missed) == (CEILING, None)
    assert max(rates) == CEILING


@given(
    limit=st.floats(1.0, 63.9),
    guess=st.none() | st.floats(0.01, 1000.0),
    resolution=st.floats(1.005, 2.0),
)
def test_it_agrees_with_a_linear_scan(limit, guess, resolution):
    """On a server that meets everything up to a limit, steps of the resolution find the same bracket."""
    search, rates = tried(limit, resolution=resolution, most_runs=200, guess=guess)
    scan = 1.0
    while scan * resolution <= limit:
        scan *= resolution
    assert search.met <= limit < search.missed
    assert search.missed / search.met <= resolution * (1 + 1e-12)
    assert scan / resolution < search.met < scan * resolution * resolution
    assert len(rates) == len(set(rates))
    assert len(rates) <= 12 + math.log2(math.log(CEILING) / math.log(resolution))


def test_a_search_ends_with_its_runs():
    search, rates = tried(10.0, most_runs=5)
    assert len(rates) == 5
    assert (search.met, round(search.missed, 1)) == (8.0, 22.6)
    with pytest.raises(ValueError, match="ended"):
        search.tell(met=True)


def test_side_by_side_all_get_the_same_number_of_rounds():
    limits, now = (0.5, 3.0, 100.0), [0.0]

    def try_rate(place: int, rate: float) -> bool:
        now[0] += 1.0
        return rate <= limits[place]

    searches = [RateSearch(1.15, 10) for _ in limits]
    assert search_together(searches, try_rate, budget_s=1e9, clock=lambda: now[0])
    assert [search.met for search in searches] == [0.0, pytest.approx(3.0, rel=0.15), CEILING]
    # Three rates in the first round, two in each later one: 3, 5, and one more would end at 7 of 6 seconds.
    searches, now[0] = [RateSearch(1.15, 10) for _ in limits], 0.0
    assert not search_together(searches, try_rate, budget_s=6.0, clock=lambda: now[0])
    assert [search.runs for search in searches] == [1, 2, 2]
    assert [search.met for search in searches] == [0.0, 2.0, 2.0]
