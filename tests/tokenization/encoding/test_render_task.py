"""What a worker does with chats: in order, no more than it may hold, and nothing that others must decide."""

from __future__ import annotations

import time
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
from kvtune.tokenization.encoding.render_task import Answer, Ask, RenderTask, packed, unpacked
from tests.tokenization.encoding.models import TOOL, chat, encoder_of, write_model

ROOM = 1 << 20
DEEP = "{% macro r(n) %}{% if n %}x{{ r(n - 1) }}{% endif %}{% endmacro %}{{ r(300) }}"


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


def ask(pipe: Connection, number: int, *following: int, room: int = ROOM) -> Answer:
    pipe.send(Ask(number, following, room))
    answer: Answer = pipe.recv()
    return answer


def settled(pipe: Connection, count: int) -> dict[int, list[Rendered | None]]:
    """All chunks, once `count` are done: there is no chunk -1."""
    found: dict[int, list[Rendered | None]] = {}
    while len(found) < count:
        found |= {number: list(unpacked(chunk)) for number, chunk in ask(pipe, -1).chunks}
    return found


def test_texts_are_those_that_an_encoder_renders(pipe: Connection, tmp_path: Path) -> None:
    chats = [chat("hi", "ho", "he", tools=[TOOL]), chat("hi", "ho", "héé\ud800"), chat("")]
    pipe.send((7, chats))
    encoder = encoder_of(tmp_path / "here")
    wanted = [encoder.render(one) for one in chats]
    assert settled(pipe, 1) == {7: [Rendered(prompt.text, prompt.tool_texts) for prompt in wanted]}
    assert len(wanted[0].tool_texts) == 1


@pytest.mark.parametrize(
    "request_",
    [
        chat("hi", chat_template="{{ strftime_now('%Y') }}"),
        chat("hi", chat_template="{{ raise_exception('no') }}"),
        chat("hi", chat_template="{% if %}"),
        chat("hi", chat_template=DEEP),
        chat(messages=[{"content": "no role"}]),
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ],
    ids=["a date", "refused", "no template", "deep recursion", "no chat", "media"],
)
def test_what_more_than_the_chat_decides_is_left_alone(pipe: Connection, request_: Any) -> None:
    pipe.send((0, [request_, chat("hi")]))
    left_alone, rendered = settled(pipe, 1)[0]
    assert left_alone is None
    assert rendered is not None


def test_what_is_asked_for_too_early_is_left_to_who_asks(
    pipe: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render_task, "MOST_HELD", 1)  # so it stops after the first chunk
    for number in range(5):
        pipe.send((number, [chat("hi")]))
    answer = ask(pipe, -1)
    while not answer.chunks:
        answer = ask(pipe, -1)
    assert ([number for number, _ in answer.chunks], answer.left) == ([0], [])
    assert ask(pipe, 3, 4, 5, room=0) == Answer([], [3, 4])
    assert sorted(settled(pipe, 2)) == [1, 2]


def test_after_a_template_that_does_too_much_nothing_more_is_rendered(pipe: Connection) -> None:
    too_much = chat("hi", chat_template="{{ 'x' * 999999999 }}")
    pipe.send((0, [chat("hi"), too_much, chat("hi")]))
    pipe.send((1, [chat("hi")]))
    found = settled(pipe, 2)
    assert found[0][0] is not None
    assert [*found[0][1:], *found[1]] == [None, None, None]


def test_the_chunk_in_hand_is_finished_for_who_asks_and_the_next_is_left(pipe: Connection) -> None:
    slow = "{% for i in range(300) %}{% for j in range(20) %}{{ i }}{% endfor %}{% endfor %}"
    answer = Answer([], [0, 1])
    while answer.left == [0, 1]:  # it had not begun
        pipe.send((0, [chat("hi", chat_template=slow) for _ in range(40)]))
        for number in (1, 2, 3):
            pipe.send((number, [chat("hi")]))
        time.sleep(0.02)
        answer = ask(pipe, 0, 1, room=0)
    assert [number for number, _ in answer.chunks] == [0]
    assert answer.left == [1]
    assert None not in list(unpacked(answer.chunks[0][1]))
    assert sorted(settled(pipe, 2)) == [2, 3]


def test_a_worker_that_cannot_open_the_model_leaves_everything(tmp_path: Path) -> None:
    ours, theirs = Pipe()
    task = RenderTask(partial(open_prompt_encoder, model=tmp_path / "missing"))
    worker = Thread(target=task.serve, args=(theirs,))
    worker.start()
    ours.send((0, [chat("hi")]))
    assert settled(ours, 1) == {0: [None]}
    ours.send(None)
    worker.join(timeout=60)
    assert not worker.is_alive()


def test_the_chunk_that_is_asked_for_comes_whatever_the_room(pipe: Connection) -> None:
    text = "<s><|turn|>user\n<|end|>\n<|turn|>assistant\n"
    for number in range(4):
        pipe.send((number, [chat("")]))
    first: Answer | None = None
    while first is None or not first.chunks:
        first = ask(pipe, 3, room=0)
        if first.left:
            pipe.send((3, [chat("")]))  # asked too early: once more
    assert [number for number, _ in first.chunks] == [3]
    assert [number for number, _ in ask(pipe, -1, room=2 * len(text) + 1).chunks] == [0, 1]
    assert [number for number, _ in ask(pipe, -1).chunks] == [2]


@given(
    st.lists(
        st.none()
        | st.tuples(st.text("ab\ud800é", max_size=20), st.lists(st.text("t", max_size=2), max_size=2)),
        max_size=12,
    )
)
def test_an_answer_is_what_was_held(texts: list[tuple[str, list[str]] | None]) -> None:
    chats = [Rendered(*one) if one is not None else None for one in texts]
    assert list(unpacked(list(packed(chats)))) == chats
