"""Which part of a prompt a token stands in."""

from __future__ import annotations

import time
from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvtune.tokenization.encode import encode_trace
from kvtune.tokenization.encoding.parts import TEMPLATE, Span, cut_spans, runs_of, spans_from
from kvtune.tokenization.request import Request
from kvtune.tokenization.trace import PARTS
from tests.tokenization.encoding.models import TOOL, chat, encoder_of


def parts_by_character(request: Request, folder: Path) -> list[tuple[str, str]]:
    """(text, part) of each run of characters; in this vocabulary a token is a byte or a special token."""
    encoder = encoder_of(folder)
    text = encoder.render(request).text
    trace, _ = encode_trace([request], encoder)
    runs: list[tuple[str, str]] = []
    at = 0
    for position in range(int(trace.prompt_tokens[0])):
        special = next((t for t in encoder.vocabulary.special_tokens if text.startswith(t, at)), text[at])
        part = trace.parts.part_of(0, position)
        at += len(special)
        if runs and runs[-1][1] == part:
            runs[-1] = (runs[-1][0] + special, part)
        else:
            runs.append((special, part))
    assert at == len(text)
    return runs


def test_every_part_of_a_chat(tmp_path: Path) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Weather? "},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [{"function": {"name": "lookup", "arguments": '{"city": "Rome"}'}}],
        },
        {"role": "tool", "content": "Sunny"},
        {"role": "assistant", "content": "Sunny it is."},
        {"role": "user", "content": [{"type": "text", "text": "Thanks"}, {"type": "text", "text": "a lot"}]},
    ]
    runs = parts_by_character(chat(messages=messages, tools=[TOOL, TOOL]), tmp_path)
    tool = '{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}'
    assert runs == [
        ("<s>", "template"),
        (f"{tool}\n{tool}", "tools"),
        ("\n<|turn|>system\n", "template"),
        ("Be brief.", "system"),
        ("<|end|>\n<|turn|>user\n ", "template"),
        ("Weather?", "user"),
        (" <|end|>\n<|turn|>assistant\n", "template"),
        ("Let me see.", "assistant"),
        ("<|call|>", "template"),
        ("lookup", "assistant"),
        (' {"city": "', "template"),
        ("Rome", "assistant"),
        ('"}<|end|>\n<|turn|>tool\n', "template"),
        ("Sunny", "tool"),
        ("<|end|>\n<|turn|>assistant\n", "template"),
        ("Sunny it is.", "assistant"),
        ("<|end|>\n<|turn|>user\n", "template"),
        ("Thanksa lot", "user"),
        ("<|end|>\n<|turn|>assistant\n", "template"),
    ]


def test_letters_of_several_bytes(tmp_path: Path) -> None:
    encoder = encoder_of(tmp_path)
    trace, _ = encode_trace([chat("é北é")], encoder)
    head = len("\nuser\n") - 1  # characters between the special tokens <s><|turn|> and the text
    names = [trace.parts.part_of(0, position) for position in range(int(trace.prompt_tokens[0]))]
    first = 2 + head
    assert names[:first] == ["template"] * first
    assert names[first : first + 7] == ["user"] * 7, "two, three and two bytes"
    assert names[first + 7] == "template"


def test_later_requests_share_what_was_found_for_earlier_ones(tmp_path: Path) -> None:
    encoder = encoder_of(tmp_path)
    requests = [chat("hi", id="a"), chat("hi", "ho", "he", id="b"), chat("hi", "ho", "hu", id="c")]
    trace, _ = encode_trace(requests, encoder)
    for number, request in enumerate(requests):
        alone, _ = encode_trace([request], encoder)
        length = int(alone.prompt_tokens[0])
        assert [trace.parts.part_of(number, at) for at in range(length)] == [
            alone.parts.part_of(0, at) for at in range(length)
        ]


def test_prompts_without_structure_are_the_user_s(tmp_path: Path) -> None:
    requests = [Request(id="a", text="plain text"), Request(id="b", token_ids=[1, 2])]
    trace, _ = encode_trace(requests, encoder_of(tmp_path))
    assert {trace.parts.part_of(0, 3), trace.parts.part_of(1, 1)} == {"user"}


def test_texts_that_the_template_drops_are_nobody_s() -> None:
    messages = [{"role": "user", "content": "gone"}, {"role": "user", "content": "here"}]
    spans = spans_from("<u>here</u>", messages, (), 0)
    assert [(span.start, span.end, PARTS[span.code]) for span in spans] == [(3, 7, "user")]


def test_a_text_that_repeats_itself_is_found_where_it_stands_last() -> None:
    messages = [{"role": "user", "content": "ab" * 40}]
    assert [tuple(span)[:2] for span in spans_from("ab" * 41 + "|" + "ab" * 40, messages, (), 0)] == [
        (83, 163)
    ]


def test_hostile_texts_take_linear_time() -> None:
    """Searching backwards for this text in that one compares half a million times half a million letters."""
    text = "a" * 1_000_000
    messages = [{"role": "user", "content": "b" + "a" * 500_000}] * 3
    start = time.process_time()
    assert spans_from(text, messages, (), 0) == []
    assert time.process_time() - start < 5


def test_only_what_is_new_is_looked_for() -> None:
    messages = [{"role": "user", "content": text} for text in ("one", "two", "three")]
    assert [span.start for span in spans_from("one|two|three", messages, (), 5)] == [4, 8]


def test_spans_are_cut_to_pieces() -> None:
    spans = [Span(0, 4, 1), Span(6, 10, 2)]
    assert cut_spans(spans, 2, 8) == [Span(0, 2, 1), Span(4, 6, 2)]
    assert cut_spans(spans, 4, 6) == []


@st.composite
def noted_pieces(draw: st.DrawFn) -> tuple[str, list[int], list[Span]]:
    """A text, the sizes of its tokens in bytes, and spans of its characters."""
    text = draw(st.text("aé北", min_size=1, max_size=12))
    size = len(text.encode())
    cuts = sorted(draw(st.sets(st.integers(1, size))) | {size})
    borders = sorted(draw(st.sets(st.integers(0, len(text)), max_size=6)))
    spans = [Span(a, b, 1 + n % 3) for n, (a, b) in enumerate(zip(borders[::2], borders[1::2], strict=False))]
    return text, np.diff([0, *cuts]).tolist(), spans


@given(st.lists(noted_pieces(), max_size=5))
def test_runs_of_many_pieces_equal_looking_at_each_token(
    pieces: list[tuple[str, list[int], list[Span]]],
) -> None:
    texts = [text for text, _, _ in pieces]
    ends = [np.cumsum(sizes, dtype=np.int64) for _, sizes, _ in pieces]
    found = runs_of([spans for _, _, spans in pieces], texts, ends)
    assert len(found) == len(pieces)
    for (text, sizes, spans), (run_ends, codes) in zip(pieces, found, strict=True):
        at = 0
        for token, size in enumerate(sizes):
            whose = {
                span.code
                for span in spans
                if len(text[: span.start].encode()) < at + size and at < len(text[: span.end].encode())
            }
            at += size
            if len(whose) < 2:  # a token across two spans belongs to either
                run = bisect_right(run_ends, token)
                assert (codes[run] if run < len(codes) else TEMPLATE) == (whose.pop() if whose else TEMPLATE)
