"""What shippers, queues and APIs put around a record comes off; the record's prompt and time stay what they are."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest

from kvtune.tokenization.errors import NoUsableRequestError
from kvtune.tokenization.reading import ReadResult, read_trace
from kvtune.tokenization.rejects import Rejection
from kvtune.tokenization.selection import Selection

BODY = {"model": "m", "messages": [{"role": "user", "content": 'Say "hi" in {braces} | and [pod/a/b] '}]}
TEXT = json.dumps(BODY)
AT = "2026-11-30T23:22:36.746691Z"
SECONDS = 1796080956.746691
VLLM = (
    "INFO 11-30 07:12:00 [logger.py:1] Received request cmpl-1: prompt: 'Once', params: S(), "
    "prompt_token_ids: None, lora_request: None."
)


def read(data: str | bytes, **options: Any) -> tuple[ReadResult, list[Rejection]]:
    found: list[Rejection] = []
    raw = data.encode() if isinstance(data, str) else data
    return read_trace(["-"], stdin=io.BytesIO(raw), on_reject=found.append, **options), found


@pytest.mark.parametrize(
    "line",
    [
        f"{AT} {TEXT}",
        f"{AT} stdout F {TEXT}",
        f"gw-1  | {AT} {TEXT}",
        f"[pod/gw-0/gw] {AT} {TEXT}",
        f"{AT} INFO gateway request {TEXT}",
        f"{AT} host gateway[12]: {TEXT}",
        json.dumps({"log": TEXT + "\n", "stream": "stdout", "time": AT}),
        json.dumps({"message": TEXT, "date": AT, "service": "gw"}),
        json.dumps({"line": TEXT, "timestamp": AT, "labels": {}}),
        json.dumps({"preview": False, "result": {"_raw": TEXT, "_time": AT}}),
        json.dumps({"jsonPayload": BODY, "timestamp": AT}),
        json.dumps({"jsonPayload": {"message": TEXT}, "timestamp": AT}),
        json.dumps({"_index": "i", "_source": {"message": TEXT, "@timestamp": AT}}),
        json.dumps({"hits": {"hits": [{"_source": {"message": TEXT, "@timestamp": AT}}]}}),
        json.dumps({"topic": "t", "ts": 1796080956746.691, "payload": TEXT}),
        json.dumps({"logEvents": [{"message": TEXT, "timestamp": 1796080956746.691}]}),
        json.dumps({"events": [{"message": f"{AT} {TEXT}"}]}),
        json.dumps({"data": {"result": [{"stream": {}, "values": [["1796080956746691000", TEXT]]}]}}),
        json.dumps({"Records": [{"data": base64.b64encode(TEXT.encode()).decode(), "time": AT}]}),
        json.dumps({"event": {"msg": {"payload": TEXT}}, "time": AT}),
    ],
)
def test_the_record_comes_out_with_the_time_around_it(line: str) -> None:
    result, rejected = read(line + "\n")
    assert not rejected
    (request,) = result.requests
    assert request.messages == BODY["messages"]
    assert request.arrival == pytest.approx(SECONDS, abs=0.001)


def test_a_records_own_time_goes_before_the_one_around_it() -> None:
    record = {"timestamp": 7.5, "request": BODY}
    for line in (f"{AT} stdout F {json.dumps(record)}", json.dumps({"log": json.dumps(record), "time": AT})):
        (request,) = read(line)[0].requests
        assert request.arrival == 7.5


@pytest.mark.parametrize(
    "prefix",
    ["", f"{AT} ", f"{AT} stderr F ", "[pod/v-0/vllm] ", "vllm-1  | ", "Nov 30 07:12:01 host vllm[1]: "],
)
def test_vllms_lines_are_read_behind_a_prefix_and_others_passed_over(prefix: str) -> None:
    lines = [VLLM, "INFO 11-30 07:12:00 [a.py:1] Starting", "Traceback (most recent call last):"]
    result, rejected = read("".join(f"{prefix}{line}\n" for line in lines))
    assert [request.text for request in result.requests] == ["Once"]
    assert not rejected


def test_a_line_cut_by_the_container_runtime_is_joined_by_stream() -> None:
    half = TEXT.index("{braces}")
    lines = [
        f"{AT} stdout P {TEXT[:half]}",
        f"{AT} stderr F something else",
        f"{AT} stdout F {TEXT[half:]}",
    ]
    assert [request.messages for request in read("\n".join(lines))[0].requests] == [BODY["messages"]]


def test_a_line_cut_by_dockers_json_file_is_joined() -> None:
    body = {"messages": [{"role": "user", "content": "x" * 40_000}]}
    text = json.dumps(body) + "\n"
    pieces = [text[at : at + 16384] for at in range(0, len(text), 16384)]
    lines = [json.dumps({"log": piece, "stream": "stdout", "time": AT}) for piece in pieces]
    assert [request.messages for request in read("\n".join(lines))[0].requests] == [body["messages"]]


def test_a_page_on_one_line_is_its_records() -> None:
    rows = [{"request": BODY | {"n": number}, "timestamp": number} for number in range(3)]
    for name in ("data", "rows", "items", "runs", "entries"):
        assert len(read(json.dumps({name: rows, "meta": {"page": 1}}))[0].requests) == 3


def test_other_lines_in_a_shippers_objects_are_passed_over_and_counted() -> None:
    lines = [json.dumps({"message": text, "time": AT}) for text in ("started", TEXT, "GET /health 200")]
    result, rejected = read("\n".join(lines))
    assert len(result.requests) == 1 and not rejected
    assert any("hold no request" in note and "(2 records)" in note for note in result.stats.notes)


def test_the_options_that_name_a_field_see_what_stood_around_the_record() -> None:
    lines = [
        json.dumps({"log": TEXT + "\n", "kubernetes": {"pod_name": pod}, "time": AT})
        for pod in ("a", "b", "a")
    ]
    result, _ = read("\n".join(lines), by_field="kubernetes.pod_name")
    assert [request.server for request in result.requests] == ["a", "b", "a"]


def test_a_body_in_a_field_of_its_own_is_hinted_at_and_read_where_the_user_says() -> None:
    line = json.dumps({"detail": {"http-in": {"payload": TEXT}}, "eventTime": AT, "kind": "call"})
    with pytest.raises(NoUsableRequestError, match=r"--body-field detail\.http-in\.payload"):
        read(line)
    (request,) = read(line, selection=Selection(body_field="detail.http-in.payload"))[0].requests
    assert request.messages == BODY["messages"]
    assert request.arrival == pytest.approx(SECONDS)


def test_a_record_without_the_users_field_is_rejected_by_name() -> None:
    lines = [json.dumps({"detail": BODY}), json.dumps({"other": 1})]
    result, rejected = read("\n".join(lines), selection=Selection(body_field="detail"))
    assert len(result.requests) == 1
    assert [(one.reason, one.field) for one in rejected] == [("missing_field", "detail")]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ({"type": "user", "sessionId": "s", "uuid": "u", "message": BODY["messages"]}, "Claude Code session"),
        ({"type": "response_item", "payload": {"type": "message", "role": "user"}}, "Codex session"),
        ({"sessionId": "s", "projectHash": "p", "messages": [{"type": "user"}]}, "Gemini CLI session"),
        ({"request": {"contents": [{"role": "user"}]}}, "Gemini API"),
        ({"id": "c", "chat": {"history": {"messages": {}}}}, "Open WebUI"),
        ({"conversationId": "c", "endpoint": "e", "messages": []}, "LibreChat"),
        ({"custom_id": "c", "response": {"body": {}}}, "a batch's output"),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            "fine-tuning data",
        ),
    ],
)
def test_what_holds_no_prompts_is_named_and_a_way_shown(line: dict[str, Any], what: str) -> None:
    with pytest.raises(NoUsableRequestError, match=f"{what}: 2 of 2 records") as caught:
        read(f"{json.dumps(line)}\n{json.dumps(line)}\n")
    assert caught.value.way_out
