"""A stored report's command: what is taken from it, and what a stranger's file cannot decide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from kvtune.analyzers.document import encode_report
from kvtune.analyzers.report import Report
from kvtune.cli.analysis_options import AnalysisOptions, InputOptions, ModelOptions
from kvtune.cli.stored import as_stored, stored_report
from kvtune.tokenization.errors import UnusableInputError

TODAY = AnalysisOptions()


def taken(report: Report, command: str, today: AnalysisOptions = TODAY) -> tuple[list[str], AnalysisOptions]:
    return as_stored(msgspec.structs.replace(report, command=command), "r.json", today)


@pytest.mark.parametrize("name", ["analyze", "validate"])
def test_traces_and_options_are_taken(report: Report, name: str) -> None:
    traces, asked = taken(
        report,
        f"kvtune {name} 'a b' c.gz --model m --units 16,32 --dcp 2 --arrivals trace --capacity-curve -- vllm serve m",
    )
    assert traces == ["a b", "c.gz", "vllm", "serve", "m"]
    assert asked.model == ModelOptions(model="m")
    assert asked.engine.dcp == 2
    assert (asked.replay.units, asked.replay.arrivals, asked.replay.capacity_curve) == (
        "16,32",
        "trace",
        True,
    )
    assert asked.sizes == TODAY.sizes


def test_options_of_the_probe_are_read_and_left_alone(report: Report) -> None:
    command = (
        "kvtune validate t --serve 'vllm serve m' --endpoint http://h:1 --gpu --layers 2 --runs 3 --seed 7"
    )
    assert taken(report, command) == (["t"], replace(TODAY, replay=replace(TODAY.replay, seed=7)))


def test_a_self_check_names_no_trace(report: Report) -> None:
    assert taken(report, "kvtune validate --units 176")[0] == []


def test_variables_of_today_add_nothing(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTUNE_UNITS", "8")
    monkeypatch.setenv("KVTUNE_TRUST_REQUEST_CHAT_TEMPLATE", "1")
    assert taken(report, "kvtune analyze t")[1] == TODAY


def test_what_decides_no_number_is_of_today(report: Report) -> None:
    today = replace(TODAY, input=InputOptions(rejects="mine", strict=True, workers=3, format="x"))
    command = "kvtune analyze t --rejects theirs --workers 64 --format openai-batch"
    found = taken(report, command, today)[1].input
    assert found == InputOptions(rejects="mine", strict=True, workers=3, format="openai-batch")
    assert taken(report, command)[1].input.rejects is None


def test_trust_in_templates_has_to_be_given_again(report: Report) -> None:
    command = "kvtune analyze t --trust-request-chat-template"
    with pytest.raises(UnusableInputError, match=r"--trust-request-chat-template.*not taken from a file"):
        taken(report, command)
    trusting = replace(TODAY, model=ModelOptions(trust_request_chat_template=True))
    assert taken(report, command, trusting)[1].model.trust_request_chat_template
    assert not taken(report, "kvtune analyze t", trusting)[1].model.trust_request_chat_template


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("kvtune analyze -", "stdin"),
        ("kvtune analyze --units 8", "names no trace"),
        ("kvtune report r.json", "names no command to repeat"),
        ("kvtune", "names no command to repeat"),
        ("", "names no command to repeat"),
        ("kvtune analyze 'open", "cannot be split into words"),
        ("kvtune analyze t --no-such-option", "cannot be read any more.*--no-such-option"),
        ("kvtune analyze t --arrivals later", "cannot be read any more.*later"),
        ("kvtune validate t --serve", "cannot be read any more.*--serve"),
    ],
)
def test_unusable_commands_are_named(report: Report, command: str, words: str) -> None:
    with pytest.raises(UnusableInputError, match=words) as caught:
        taken(report, command)
    assert str(caught.value).startswith("r.json")


def test_commands_that_ask_for_something_once_are_not_obeyed(
    report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    assert taken(report, "kvtune validate t --version --help") == (["t"], TODAY)
    assert capsys.readouterr().out == ""


def test_only_documents_of_kvtune_are_reports(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(encode_report(report))
    assert stored_report(str(path)) == report
    for other in ('{"prompt": "p"}', '{"schema": 1}', "[1]", "no JSON", '{"a":' + "[" * 100_000):
        path.write_text(other)
        assert stored_report(str(path)) is None
    path.write_text('{"schema": "kvtune.resolve/1"}')
    with pytest.raises(UnusableInputError, match="another kind"):
        stored_report(str(path))
    trace = tmp_path / "t.jsonl"
    trace.write_bytes(encode_report(report))
    assert stored_report(str(trace)) is None
    assert stored_report(str(tmp_path / "none.json")) is None
