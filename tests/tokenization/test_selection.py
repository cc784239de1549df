"""Which records of a log count, and in which order: outcomes, models, times, and what the user says."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from kvtune.tokenization.errors import NoUsableRequestError, UnusableInputError
from kvtune.tokenization.reading import ReadResult, read_trace
from kvtune.tokenization.rejects import Rejection
from kvtune.tokenization.selection import Selection, parse_only

BODY = {"model": "qwen3.5", "messages": [{"role": "user", "content": "hello"}]}
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "hi"}}]}


def read(*records: dict[str, Any], **selection: Any) -> ReadResult:
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    return read_trace(["-"], stdin=io.BytesIO(data), selection=Selection(**selection))


def turns(count: int) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[number % 2], "content": f"turn {number}"} for number in range(2 * count - 1)]


@pytest.mark.parametrize(
    "failed",
    [
        pytest.param(
            {"request": BODY, "status": 429, "response": {"error": {"message": "busy"}}}, id="gateway"
        ),
        pytest.param({"request": BODY, "status": "503"}, id="status in a string"),
        pytest.param({"request": BODY, "response": {"status_code": 500, "body": {}}}, id="batch output"),
        pytest.param({"request": BODY, "response": {"error": {"code": 429}}}, id="an error object"),
        pytest.param(
            {"request_id": "r", "response_status": 429, "request_body": BODY, "response_body": {}},
            id="helicone",
        ),
        pytest.param(
            {"id": "r", "call_type": "acompletion", "startTime": 1.0, "status": "failure", **BODY},
            id="litellm",
        ),
        pytest.param({"request": BODY, "errorCode": "ThrottlingException"}, id="bedrock"),
        pytest.param({"request": BODY, "ResponseCode": 429}, id="azure"),
        pytest.param(
            {"type": "GENERATION", "trace_id": "t", "level": "ERROR", "input": BODY["messages"]},
            id="langfuse",
        ),
        pytest.param(
            {
                "context": {"span_id": "a"},
                "status": {"status_code": "ERROR"},
                "attributes": {"gen_ai.input.messages": json.dumps(BODY["messages"])},
            },
            id="a span",
        ),
    ],
)
def test_a_failed_request_is_passed_over_and_counted(failed: dict[str, Any]) -> None:
    result = read({"request": BODY, "status": 200, "response": ANSWER}, failed)
    assert len(result.requests) == 1
    assert any("Failed requests" in note and "(1 records)" in note for note in result.stats.notes)
    assert result.stats.rejected == 0


@pytest.mark.parametrize(
    "fine",
    [
        {"status": "success"},
        {"status": 200},
        {"error": None},
        {"error": ""},
        {"error_str": None},
        {"error": {"message": None}},
        {"status": "OK"},
        {"status_code": 201},
    ],
)
def test_a_request_that_went_well_is_kept(fine: dict[str, Any]) -> None:
    assert len(read({"request": BODY} | fine).requests) == 1


def test_a_cancelled_request_is_kept_unless_no_prompt_was_computed() -> None:
    gone = {"request": BODY, "status": 499}
    result = read(
        gone, {"request": BODY, "status": "cancelled"}, gone | {"response": {"usage": {"prompt_tokens": 0}}}
    )
    assert len(result.requests) == 2
    assert any("Cancelled requests: kept" in note and "(2 records)" in note for note in result.stats.notes)
    assert any("not computed" in note and "(1 records)" in note for note in result.stats.notes)


@pytest.mark.parametrize(
    "other",
    [
        {"url": "/v1/embeddings", "custom_id": "1", "body": {"model": "bge", "input": "text"}},
        {"model": "bge", "input": ["one", "two"]},
        {"path": "/v1/rerank?x=1", "request": {"model": "r", "query": "q", "documents": ["a"]}},
        {"id": "r", "call_type": "aembedding", "startTime": 1.0, "messages": BODY["messages"]},
    ],
)
def test_other_operations_are_passed_over(other: dict[str, Any]) -> None:
    result = read(BODY, other)
    assert len(result.requests) == 1
    assert any("other operations" in note for note in result.stats.notes)


def test_a_log_of_embeddings_alone_says_so() -> None:
    with pytest.raises(NoUsableRequestError, match="Embeddings"):
        read({"model": "bge", "input": ["one", "two"]})


def test_of_several_models_the_one_that_is_analyzed() -> None:
    rows = [BODY | {"model": name} for name in ("gpt-4o", "hosted_vllm/Qwen3.5", "gpt-4o")]
    chosen = read(*rows, model="build/qwen3.5-like")
    assert [one.identity.model for one in chosen.requests] == ["hosted_vllm/Qwen3.5"]
    assert any("1 of 3 requests name the model" in note for note in chosen.stats.notes)
    assert len(read(*rows, model="another").requests) == 3
    assert len(read(*rows, model="qwen3.5", only={"model": frozenset({"gpt-4o"})}).requests) == 2


def test_only_takes_alternatives_of_a_field_and_all_fields() -> None:
    rows = [BODY | {"metadata": {"team": team, "tier": tier}} for team in "abc" for tier in (1, 2)]
    only = parse_only(["team=a", "team=b", "tier=1"])
    result = read(*rows, only=only)
    assert len(result.requests) == 2
    assert any("--only" in note and "(4 records)" in note for note in result.stats.notes)
    with pytest.raises(UnusableInputError, match="FIELD=VALUE"):
        parse_only(["team"])


def test_isolate_by_keeps_values_apart() -> None:
    rows = [BODY | {"metadata": {"team": team}} for team in "aba"]
    assert len({one.identity for one in read(*rows).requests}) == 1
    assert [one.identity.tenant for one in read(*rows, isolate_by="team").requests] == ["a", "b", "a"]


@pytest.mark.parametrize(
    "name",
    [
        "request_time",
        "createdAt",
        "@timestamp",
        "TimeGenerated",
        "eventTime",
        "logging_time",
        "time_iso8601",
        "date",
        "requestTimestamp",
        "started_at",
        "_time",
        "time_local",
    ],
)
def test_times_of_many_names(name: str) -> None:
    times = ["2026-12-01T05:00:02Z", "2026-12-01T05:00:01Z"]
    if name == "time_local":
        times = ["01/Dec/2026:05:00:02 +0000", "01/Dec/2026:05:00:01 +0000"]
    result = read(*({"request": BODY, name: time} for time in times))
    assert [one.arrival for one in result.requests] == [1796101201.0, 1796101202.0]


def test_a_word_under_a_name_of_times_is_no_time() -> None:
    (request,) = read({"request": BODY, "date": "today"}).requests
    assert request.arrival is None


def test_a_file_without_times_says_so_and_names_what_looks_like_one() -> None:
    result = read(*({"request": BODY, "seen_at": "2026-12-01T05:00:00Z"} for _ in range(2)))
    assert any("No times in" in note for note in result.stats.notes)
    assert any("--time-field seen_at" in note for note in result.stats.notes)


def test_time_field() -> None:
    rows = [{"request": BODY, "timing": {"queued": time}} for time in (20.0, 10.0)]
    assert [one.arrival for one in read(*rows, time_field="timing.queued").requests] == [10.0, 20.0]
    with pytest.raises(UnusableInputError, match="--time-field"):
        read(*rows, time_field="timing.none")


def test_newest_first_is_noticed_and_turned() -> None:
    rows = [BODY | {"messages": turns(count)} for count in (4, 3, 2, 1)]
    turned = read(*rows)
    assert [len(one.messages or ()) for one in turned.requests] == [1, 3, 5, 7]
    assert any("newest-first" in note for note in turned.stats.notes)
    assert [len(one.messages or ()) for one in read(*rows, order="oldest").requests] == [7, 5, 3, 1]
    oldest = read(*rows[::-1])
    assert [len(one.messages or ()) for one in oldest.requests] == [1, 3, 5, 7]
    assert [len(one.messages or ()) for one in read(*rows[::-1], order="newest").requests] == [7, 5, 3, 1]


def test_conversations_are_told_by_their_messages() -> None:
    rows = [BODY | {"messages": turns(count), "session_id": f"call {count}"} for count in (1, 2, 3)]
    other = BODY | {"messages": [{"role": "user", "content": "another"}], "session_id": "call 9"}
    one, two, three, alone = read(*rows, other).requests
    assert one.session == two.session == three.session is not None
    assert alone.session is None


def test_one_id_for_all_conversations_is_no_conversation() -> None:
    talks = [[{"role": "system", "content": name}, *turns(count)] for name in "ab" for count in (1, 2)]
    result = read(*(BODY | {"messages": talk, "session_id": "prod"} for talk in talks))
    assert len({one.session for one in result.requests}) == 2


def test_ids_that_fit_the_messages_stay() -> None:
    rows = [BODY | {"messages": turns(count), "session_id": "s"} for count in (1, 2)]
    assert {one.session for one in read(*rows).requests} == {"s"}


def test_an_answer_that_moves_cache_control_continues_its_conversation() -> None:
    marked = {"type": "text", "text": "turn 0", "cache_control": {"type": "ephemeral"}}
    first = BODY | {"messages": [{"role": "user", "content": [marked]}]}
    result = read(first, BODY | {"messages": turns(2)})
    assert len({one.session for one in result.requests}) == 1


def test_the_outer_of_two_spans_of_one_call_is_left_out() -> None:
    def span(name: str, parent: str | None) -> dict[str, Any]:
        attributes = {"gen_ai.input.messages": json.dumps(BODY["messages"]), "gen_ai.usage.output_tokens": 3}
        return {"context": {"span_id": name}, "parent_id": parent, "attributes": attributes}

    chain = {"context": {"span_id": "chain"}, "parent_id": "outer", "attributes": {"x": 1}}
    result = read(span("outer", None), chain, span("inner", "chain"), span("other", None))
    assert [one.id for one in result.requests] == ["inner", "other"]


def test_one_bad_span_costs_no_other_and_counts_once() -> None:
    def span(name: str, messages: str | None) -> dict[str, Any]:
        attributes = (
            [] if messages is None else [{"key": "gen_ai.input.messages", "value": {"stringValue": messages}}]
        )
        attributes.append({"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}})
        return {"spanId": name, "attributes": attributes}

    good = json.dumps(BODY["messages"])
    spans = [span("a", good), span("b", None), span("c", good[:-20]), span("d", good)]
    found: list[Rejection] = []
    data = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    result = read_trace(["-"], stdin=io.BytesIO(data), on_reject=found.append)
    assert [one.id for one in result.requests] == ["a", "d"]
    assert [(one.where, one.reason) for one in found] == [
        ("-:1/1", "no_request"),
        ("-:1/2", "truncated_prompt"),
    ]


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("x" * 200 + " ... (litellm_truncated skipped 9 chars. x) " + "y" * 90, True),
        ("<truncated due to size exceeding limit>", True),
        ("x" * 300 + "...[truncated]", True),
        ("x" * 300 + "…", False),  # a writer's
        ("the word litellm_truncated alone", False),
        ("a sentence that ends (truncated) here", False),
    ],
)
def test_marks_of_cut_texts(text: str, cut: bool) -> None:
    row = {"model": "m", "messages": [{"role": "user", "content": text}]}
    result = read(BODY, row)
    assert result.stats.rejected_by == ({"truncated_prompt": 1} if cut else {})


def test_texts_of_one_greatest_length_are_cut() -> None:
    def rows(length: int) -> list[dict[str, Any]]:
        return [
            {"model": "m", "messages": [{"role": "user", "content": (f"{number} " * length)[:length]}]}
            for number in range(4)
        ]

    assert read(BODY, *rows(2048)).stats.rejected_by == {"truncated_prompt": 4}
    assert read(BODY, *rows(2047 - 30)).stats.rejected_by == {}


def test_a_tool_output_that_its_program_cut_is_a_text_like_another() -> None:
    messages = [
        *BODY["messages"],
        {"role": "tool", "tool_call_id": "c", "content": "x" * 900 + "[truncated]"},
    ]
    assert read(BODY | {"messages": messages, "tools": []}).stats.rejected == 0


def test_latest_turns_of_a_spend_log_are_rejected() -> None:
    row = {
        "request_id": "r",
        "call_type": "acompletion",
        "startTime": "2026-12-01 05:00:00",
        "messages": "{}",
    }
    rows = [
        row | {"request_id": str(n), "proxy_server_request": json.dumps(BODY), "prompt_tokens": n}
        for n in (9, 4000)
    ]
    with pytest.raises(NoUsableRequestError, match="cut the prompt off: 2"):
        read(*rows)
    assert len(read(rows[0], rows[0] | {"request_id": "another"}).requests) == 2


def test_a_call_logged_twice_under_one_id_counts_once() -> None:
    rows = [BODY | {"id": f"call {number}", "messages": turns(number + 1)} for number in range(3)]
    result = read(*rows, rows[1], BODY | {"id": "call 2", "messages": turns(5)})
    assert [one.id for one in result.requests] == ["call 0", "call 1", "call 2", "call 2#2"]
    assert any("logged twice" in note and "(1 records)" in note for note in result.stats.notes)
    assert len(read(*[BODY | {"id": "load test"}] * 9).requests) == 9
