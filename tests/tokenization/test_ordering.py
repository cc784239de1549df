"""Order, merging and unique ids against the obvious way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvtune.tokenization.ordering import count_reordered, in_replay_order, number_duplicates
from kvtune.tokenization.request import Request

TIMES = st.lists(st.integers(0, 5).map(float), min_size=1, max_size=8)


def requests_of(times: list[float | None], name: str = "r") -> list[Request]:
    return [Request(id=f"{name}{number}", arrival=time, text="x") for number, time in enumerate(times)]


@given(st.lists(TIMES, min_size=1, max_size=4))
def test_timed_files_merge_stably(files: list[list[float]]) -> None:
    made = [requests_of(list(times), f"f{number}-") for number, times in enumerate(files)]
    flat = [
        (one.arrival, number, position)
        for number, file in enumerate(made)
        for position, one in enumerate(file)
    ]
    wanted = [f"f{number}-{position}" for _, number, position in sorted(flat)]
    assert [one.id for one in in_replay_order(made)] == wanted


@given(st.lists(st.none() | st.integers(0, 5).map(float), max_size=10))
def test_nothing_is_lost_and_times_never_fall(times: list[float | None]) -> None:
    made = requests_of(times)
    ordered = in_replay_order([made])
    assert sorted(one.id for one in ordered) == sorted(one.id for one in made)
    known = [one.arrival for one in ordered if one.arrival is not None]
    assert known == sorted(known)


@given(TIMES)
def test_reordered(times: list[float]) -> None:
    wanted = sum(any(earlier > time for earlier in times[:at]) for at, time in enumerate(times))
    assert count_reordered(requests_of(list(times))) == wanted


@given(st.lists(st.sampled_from(["a", "b", "a#2", "a#3", "a#2#2"])))
def test_every_id_becomes_unique_and_first_comers_keep_theirs(names: list[str]) -> None:
    made = [Request(id=name, text="x") for name in names]
    renamed = number_duplicates(made)
    ids = [one.id for one in made]
    assert len(set(ids)) == len(ids)
    assert renamed == len(names) - len(set(names))
    for at, name in enumerate(names):
        assert ids[at].startswith(name)
        if name not in names[:at]:
            assert ids[at] == name
