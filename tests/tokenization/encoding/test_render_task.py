"""What a worker does with chats: in order, no more than it may hold, and nothing that others must decide."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtune.tokenization.encoding import render_task
from kvtune.tokenization.encoding.open_encoder import open_prompt_encoder
from kvtune.tokenization.encoding.prompt_encoder import Rendered
from kvtune.tokenization.encoding.render_task import Held, RenderTask, unpacked
from tests.tokenization.encoding.models import chat, encoder_of, write_model

ROOM = 1 << 20
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Connection]:
    """The other end of a worker that renders with the model in `tmp_path`; it works on a thread here."""
    write_model(tmp_path)
    task = RenderTask(partial(open_prompt_encoder, model=tmp_path, renders_only=True, trusts_requests=True))
    ours, theirs = Pipe()
    worker = Thread(target=task.serve, args=(theirs,))
    worker.start()
    yield ours
    ours.send(None)
    worker.join(timeout=60)
    assert not worker.is_alive()


def ask(pipe: Connection, number: int, room: int = ROOM) -> dict[int, Rendered | None]:
    pipe.send((number, room))
    return dict(unpacked(pipe.recv()))


def settled(pipe: Connection, count: int) -> dict[int, Rendered | None]:
    """Everything, once `count` chats are done: number -1 is no chat."""
    found: dict[int, Rendered | None] = {}
    while len(found) < count:
        found |= ask(pipe, -1)
    return found


def test_texts_are_those_that_an_encoder_renders(pipe: Connection, tmp_path: Path) -> None:
    chats = [chat("hi", "ho", "he", tools=[TOOL]), chat("hi", "ho", "héé\ud800"), chat("")]
    pipe.send(list(enumerate(chats)))
    encoder = encoder_of(tmp_path / "here")
    wanted = [encoder.render(one) for one in chats]
    assert settled(pipe, 3) == {
        number: Rendered(prompt.text, prompt.tool_texts) for number, prompt in enumerate(wanted)
    }
    assert len(wanted[0].tool_texts) == 1


@pytest.mark.parametrize(
    "request_",
    [
        chat("hi", chat_template="{{ strftime_now('%Y') }}"),
        chat("hi", chat_template="{{ raise_exception('no') }}"),
        chat("hi", chat_template="{% if %}"),
        chat(messages=[{"content": "no role"}]),
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ],
    ids=["a date", "refused", "no template", "no chat", "media"],
)
def test_what_more_than_the_chat_decides_is_left_alone(pipe: Connection, request_: Any) -> None:
    pipe.send([(0, request_), (1, chat("hi"))])
    found = settled(pipe, 2)
    assert found[0] is None
    assert found[1] is not None


def test_what_is_asked_for_too_early_is_not_done(pipe: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_task, "MOST_HELD", 1)  # so it stops after the first
    pipe.send([(number, chat("hi")) for number in range(4)])
    first: dict[int, Rendered | None] = {}
    while not first:
        first = ask(pipe, 2, room=ROOM)
    assert list(first) == [0]
    assert sorted(settled(pipe, 2)) == [1, 3]


def test_a_worker_that_cannot_open_the_model_leaves_everything(tmp_path: Path) -> None:
    ours, theirs = Pipe()
    task = RenderTask(partial(open_prompt_encoder, model=tmp_path / "missing"))
    worker = Thread(target=task.serve, args=(theirs,))
    worker.start()
    ours.send([(0, chat("hi"))])
    assert settled(ours, 1) == {0: None}
    ours.send(None)
    worker.join(timeout=60)
    assert not worker.is_alive()


def test_the_one_that_is_asked_for_comes_first_and_whatever_the_room() -> None:
    held = Held()
    for number, text in enumerate(["aaaa", "bb", "cc", "d"]):
        held.put(number, Rendered(text, []))
    assert [number for number, _ in held.pop_some(2, 5)] == [2, 0]
    assert held.chars == 3
    assert held.pop_some(9, 0) == []
    assert [number for number, _ in held.pop_some(9, 3)] == [1, 3]
    assert held.chars == 0
    assert held.pop(1) is None


@given(
    st.lists(
        st.none()
        | st.tuples(st.text("ab\ud800é", max_size=20), st.lists(st.text("t", max_size=2), max_size=2)),
        max_size=12,
    )
)
def test_an_answer_is_what_was_held(texts: list[tuple[str, list[str]] | None]) -> None:
    chats = [(number, Rendered(*one) if one is not None else None) for number, one in enumerate(texts)]
    assert list(unpacked(render_task._packed(chats))) == chats
