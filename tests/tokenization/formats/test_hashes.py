"""Formats of block hashes: sizes, partial blocks, scopes, chains, worked out by hand."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from kvtune.tokenization.errors import NoUsableRequestError, UnusableInputError
from kvtune.tokenization.reading import ReadResult, read_trace

DATA = Path(__file__).parents[2] / "data" / "formats"


def read(*names: str) -> ReadResult:
    return read_trace(
        [str(DATA / name) for name in names], on_reject=lambda rejection: pytest.fail(str(rejection))
    )


def read_rows(*rows: dict[str, Any]) -> tuple[ReadResult, list[str]]:
    rejected: list[str] = []
    text = "".join(json.dumps(row) + "\n" for row in rows)
    result = read_trace(
        ["-"], stdin=io.BytesIO(text.encode()), on_reject=lambda rejection: rejected.append(rejection.reason)
    )
    return result, rejected


def test_mooncake() -> None:
    result = read("mooncake.jsonl")
    assert [
        (one.arrival, one.prompt_tokens, one.output_tokens, one.block_hashes) for one in result.requests
    ] == [
        (0.0, 1100, 50, [0, 1, 2]),
        (3.052, 1024, 7, [0, 1]),
        (3.1, 700, 9, [0, 9]),
    ]
    assert {one.hash_block_size for one in result.requests} == {512}
    assert all(one.messages is one.text is one.token_ids is None for one in result.requests)
    assert list(result.stats.timestamp_units.values()) == ["ms"]


@pytest.mark.parametrize(
    ("length", "hashes", "reason"),
    [
        (1100, [0, 1, 2], None),  # 2 whole blocks and a part
        (1100, [0, 1], None),  # the part has no id: it gets one of its own
        (1024, [0, 1], None),
        (1024, [0, 1, 2], "inconsistent_blocks"),
        (1100, [0], "inconsistent_blocks"),
        (1100, [0, 1, 2, 3], "inconsistent_blocks"),
        (0, [], "not_a_number"),
        (512, ["not", "one"], "inconsistent_blocks"),
        (512, [1.5], "wrong_type"),
        (512, [True], "wrong_type"),
        (512, [None], "wrong_type"),
        (512, 7, "wrong_type"),
        ("many", [1], "not_a_number"),
        (1.5, [1], "not_a_number"),
    ],
)
def test_blocks_must_cover_the_prompt(length: Any, hashes: Any, reason: str | None) -> None:
    good = {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [0]}
    row = {"timestamp": 1, "input_length": length, "output_length": 1, "hash_ids": hashes}
    result, rejected = read_rows(good, row)
    assert rejected == ([reason] if reason else [])
    assert len(result.requests) == (1 if reason else 2)


def test_a_missing_tail_matches_nothing() -> None:
    row = {"timestamp": 0, "input_length": 700, "output_length": 1, "hash_ids": [4]}
    result, _ = read_rows(row, row)
    one, other = (request.block_hashes or [] for request in result.requests)
    assert one[0] == other[0] == 4
    assert len(one) == len(other) == 2
    assert one[1] != other[1]


def test_names_of_blocks_become_equal_numbers() -> None:
    rows = [
        {"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": ids}
        for ids in (["a", "b"], ["a", "c"])
    ]
    result, rejected = read_rows(*rows)
    one, other = (request.block_hashes or [] for request in result.requests)
    assert not rejected
    assert one[0] == other[0]
    assert len({one[0], one[1], other[1]}) == 3


def test_bailian_chains_by_parent_whatever_the_order_of_the_lines() -> None:
    result = read("bailian.jsonl")
    assert [(one.id, one.parent, one.session) for one in result.requests] == [
        ("11", None, "11"),
        ("20", None, "20"),
        ("12", "11", "11"),
        ("13", "12", "11"),
    ]
    assert {one.hash_block_size for one in result.requests} == {16}
    assert [one.prompt_tokens for one in result.requests] == [40, 16, 50, 64]
    assert result.stats.reordered == 2  # 11 and 20 stand behind 12, which came later


def test_a_circle_of_parents_ends() -> None:
    rows = [
        {
            "chat_id": chat,
            "parent_chat_id": parent,
            "timestamp": chat,
            "input_length": 16,
            "hash_ids": [chat],
            "turn": 1,
        }
        for chat, parent in ((1, 2), (2, 1), (3, 99), (4, 3))
    ]
    result, _ = read_rows(*rows)
    sessions = {one.id: one.session for one in result.requests}
    assert sessions["1"] == sessions["2"]
    assert sessions["3"] == sessions["4"] == "99"  # a parent that the trace does not hold


def test_weka_local_ids_never_cross_conversations() -> None:
    result = read("weka.jsonl")
    by_id = {one.id: one for one in result.requests}
    assert set(by_id) == {"conv-1/0", "conv-1/2/0", "conv-1/3", "conv-2/0"}  # 1 repeats 0 without streaming
    first, subagent, last = (
        by_id[name].block_hashes or [] for name in ("conv-1/0", "conv-1/2/0", "conv-1/3")
    )
    assert first[:2] == last[:2]
    assert subagent[0] == first[0]
    assert not set(first) & set(by_id["conv-2/0"].block_hashes or [])
    assert by_id["conv-1/2/0"].session == "conv-1/ag-1"
    assert by_id["conv-1/2/0"].identity.model == "lib-3b"
    assert [by_id[name].arrival for name in ("conv-1/0", "conv-1/2/0", "conv-1/3")] == [0.0, 1.6, 4.0]
    assert any("streaming" in note for note in result.stats.notes)


@pytest.mark.parametrize("start", [1767323045, 1767323045000, "2026-01-02T03:04:05Z"])
def test_weka_times_count_from_the_conversations_start(start: Any) -> None:
    requests = [{"t": 1.5, "type": "s", "in": 64, "hash_ids": [7]}]
    result, _ = read_rows({"id": "a", "block_size": 64, "timestamp": start, "requests": requests})
    assert [one.arrival for one in result.requests] == [1767323046.5]


def test_weka_global_ids_do_cross() -> None:
    rows = [
        {
            "id": name,
            "block_size": 64,
            "hash_id_scope": "global",
            "requests": [{"t": 0, "type": "s", "in": 64, "hash_ids": [7]}],
        }
        for name in ("a", "b")
    ]
    result, _ = read_rows(*rows)
    assert [one.block_hashes for one in result.requests] == [[7], [7]]


def test_dynamo() -> None:
    result = read("dynamo.jsonl")
    assert [(one.id, one.arrival, one.session, one.server, one.prompt_tokens) for one in result.requests] == [
        ("r-1", 1767323045.25, "s-1", "7000", 150),
        ("r-2", 1767323047.0, None, None, 128),
    ]
    assert result.requests[0].block_hashes == [14879255164371896291, 274632075616497421, 9]
    assert result.requests[0].output_tokens == 9
    assert {one.hash_block_size for one in result.requests} == {64}


def test_baseten_text_comes_before_hashes() -> None:
    result = read("baseten.jsonl")
    assert [(one.text, one.block_hashes, one.session) for one in result.requests] == [
        ("Once upon a time", None, "pm-1"),
        ("Once upon a hill", None, "s-2"),
    ]


def test_baseten_without_text() -> None:
    row = {"timestamp_start_unix_ms": 5000, "input_tokens": 20, "total_hashes": [8, 9], "block_size": 16}
    result, _ = read_rows(row)
    assert [(one.block_hashes, one.hash_block_size, one.arrival) for one in result.requests] == [
        ([8, 9], 16, 5.0)
    ]


def test_hashes_beside_text_are_refused_as_a_whole() -> None:
    with pytest.raises(UnusableInputError, match="mixes kinds"):
        read("mooncake.jsonl", "openai-batch.jsonl")


def test_blocks_of_two_sizes_are_refused_as_a_whole() -> None:
    with pytest.raises(UnusableInputError, match="16-token blocks"):
        read("mooncake.jsonl", "bailian.jsonl")


@pytest.mark.parametrize("name", ["burstgpt.csv", "azure.csv", "guidellm.jsonl"])
def test_lengths_only_traces_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(NoUsableRequestError, match="2 records of lengths and nothing else") as caught:
        read_trace([str(DATA / name)], on_reject=lambda rejection: pytest.fail(str(rejection)))
    assert caught.value.exit_code == 3


def test_a_long_lengths_only_trace_is_not_read_to_its_end() -> None:
    row = b'{"timestamp": 1, "input_length": 9, "output_length": 2}\n'
    stream = io.BytesIO(row * 100_000)
    with pytest.raises(NoUsableRequestError, match="1000 records of lengths"):
        read_trace(["-"], stdin=stream)
    assert stream.tell() < len(row) * 50_000


def test_lengths_between_prompts_are_rejected_alone() -> None:
    rows = [{"timestamp": 1, "input_length": 9, "output_length": 2}, {"prompt": "a"}]
    result, rejected = read_rows(rows[0], rows[0], rows[1], rows[0])
    assert len(result.requests) == 1
    assert rejected == ["lengths_only"] * 3
