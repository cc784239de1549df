"""Turns found by hand-made histories, and by a property over whole dialogues."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kvtune.tokenization.capture.conversations import Conversations


def raw(*messages):
    """Messages as (role, content) pairs."""
    return [msgspec.Raw(msgspec.json.encode({"role": role, "content": text})) for role, text in messages]


SYSTEM = ("system", "Be brief.")
HI = ("user", "Hi")


def test_a_history_with_the_answer_is_the_next_turn():
    found = Conversations("p")
    assert found.place(b'"m"', raw(SYSTEM, HI)) == ("p-0", 0)
    assert found.place(b'"m"', raw(SYSTEM, HI, ("assistant", "Hello"), ("user", "More"))) == ("p-0", 1)
    third = raw(SYSTEM, HI, ("assistant", "Hello"), ("user", "More"), ("assistant", "So"), ("tool", "1"))
    assert found.place(b'"m"', third) == ("p-0", 2)


def test_a_fork_gets_a_turn_of_its_own():
    found = Conversations("p")
    found.place(b'"m"', raw(HI))
    assert found.place(b'"m"', raw(HI, ("assistant", "a"), ("user", "x"))) == ("p-0", 1)
    assert found.place(b'"m"', raw(HI, ("assistant", "b"), ("user", "y"))) == ("p-0", 2)


def test_a_shared_beginning_alone_is_no_continuation():
    found = Conversations("p")
    assert found.place(b'"m"', raw(SYSTEM)) == ("p-0", 0)
    assert found.place(b'"m"', raw(SYSTEM, HI)) == ("p-1", 0)
    assert found.place(b'"m"', raw(SYSTEM, HI)) == ("p-2", 0)
    assert found.place(b'"other"', raw(SYSTEM, HI, ("assistant", "a"))) == ("p-3", 0)


def test_memory_is_bounded_and_what_is_forgotten_starts_anew():
    found = Conversations("p", max_remembered=2)
    for text in "abc":
        found.place(b'"m"', raw(("user", text)))
    assert found.place(b'"m"', raw(("user", "a"), ("assistant", "A"))) == ("p-3", 0)
    assert found.place(b'"m"', raw(("user", "c"), ("assistant", "C"))) == ("p-2", 1)


@given(st.permutations([number for number in range(4) for _ in range(5)]))
def test_interleaved_dialogues_keep_their_turns(order):
    found = Conversations("p")
    histories = [[("user", f"dialogue {number}")] for number in range(4)]
    names = {}
    turns = [0] * 4
    for number in order:
        name, turn = found.place(b'"m"', raw(SYSTEM, *histories[number]))
        assert names.setdefault(number, name) == name
        assert turn == turns[number]
        turns[number] += 1
        histories[number] += [("assistant", "same answer"), ("user", "same question")]
    assert len(set(names.values())) == 4
