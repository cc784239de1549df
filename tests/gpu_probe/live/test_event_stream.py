"""Events come out whole, however the bytes were cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtune.gpu_probe.live import event_stream
from kvtune.gpu_probe.live.event_stream import EventSplitter
from kvtune.tokenization.errors import MissingDependencyError

LINES = st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",)), min_size=1).map(
    lambda text: text.encode()
)


@given(
    st.lists(st.lists(LINES, min_size=1, max_size=3), max_size=5),
    st.sampled_from([b"\n", b"\r\n"]),
    st.data(),
)
def test_any_cut_gives_the_same_events(events: list[list[bytes]], end: bytes, data: st.DataObject) -> None:
    stream = b"".join(b"".join(b"data: " + line + end for line in lines) + end for lines in events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    splitter = EventSplitter()
    found = []
    for begin, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.feed(stream[begin:stop])
    assert found == [b"\n".join(lines) for lines in events]


def test_other_fields_and_comments_are_passed_over() -> None:
    assert EventSplitter().feed(b": ping\n\nevent: x\nid: 1\ndata:{}\n\nretry: 3\n\n") == [b"{}"]


def test_line_breaks_of_unicode_end_nothing() -> None:
    text = "a\u0085b\u2028c".encode()
    assert EventSplitter().feed(b"data: " + text + b"\n\n") == [text]


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", 1_000)
    splitter = EventSplitter()
    with pytest.raises(MissingDependencyError, match="too long"):
        for _ in range(100):
            splitter.feed(b"data: " + b"x" * 50 + b"\n")
