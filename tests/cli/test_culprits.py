"""Traces that an application broke: a plain `analyze` names the culprit and its worth on the first screen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.data.break_trace import break_trace

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "tests" / "data" / "traces" / "tau-airline.jsonl.gz"
MODEL = str(ROOT / "samples" / "tiny-hybrid")
SERVER = ("--model", MODEL, "--groups", "mamba:528*3,full:528", "--max-num-batched-tokens", "8192")
TEMPLATE = """{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% for message in messages %}
<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"""
SCREEN = 24
REQUESTS = 150


@pytest.mark.parametrize(
    ("how", "kind", "words", "at_least"),
    [
        ("date", "reorder", "Move the varying date and time", 0.2),
        ("tools", "tool_order", "Write the tools in one order", 0.7),
        ("truncated", "template", "keep history as it was sent and generated", 0.005),
        ("id", "reorder", "Move the varying identifier", 0.2),
    ],
)
def test_the_culprit_and_its_worth_stand_on_the_first_screen(
    run, tmp_path: Path, how: str, kind: str, words: str, at_least: float
) -> None:
    trace = tmp_path / f"{how}.jsonl"
    break_trace(how, TRACE, trace, most=REQUESTS)
    (tmp_path / "tools.jinja").write_text(TEMPLATE)
    done = run(*("analyze", str(trace), *SERVER, "--chat-template", "tools.jinja", "--json", "report.json"))
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "report.json").read_text())
    culprit = next(lever for lever in report["levers"] if lever["kind"] == kind)
    assert culprit["gain_tokens"] >= at_least * report["trace"]["prompt_tokens"]
    screen = " ".join(" ".join(done.out.splitlines()[:SCREEN]).split())
    assert words in screen
    assert f"+{culprit['gain_tokens']:,} tokens" in screen


def test_a_good_trace_has_no_culprit_and_says_what_was_looked_for(run, tmp_path: Path) -> None:
    done = run("analyze", str(ROOT / "samples" / "airline.jsonl.gz"), "--json", "report.json")
    assert done.code == 0, done.err
    kinds = {lever["kind"] for lever in json.loads((tmp_path / "report.json").read_text())["levers"]}
    assert kinds <= {"template"}
    assert "warm-up, padding, retention: add --levers" in " ".join(done.out.split())


def test_no_levers_looks_for_nothing(run, tmp_path: Path) -> None:
    trace = tmp_path / "tools.jsonl"
    break_trace("tools", TRACE, trace, most=30)
    done = run("analyze", str(trace), *SERVER, "--no-levers", "--json", "report.json")
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "report.json").read_text())["levers"] == []
