"""Prompts that the server refuses are left out, told and kept; sizes that come later are checked against the trace."""

from __future__ import annotations

import json

import pytest

from kvtune.analyzers.analysis import find
from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.options import AnalyzeOptions
from kvtune.analyzers.sweep import no_progress
from kvtune.cli.app import main
from kvtune.tokenization.errors import UnusableInputError
from tests.analyzers.traces import trace_of

SIZES = ["--groups", "mamba:32*3,full:32"]


def test_long_prompts_are_left_out(tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"prompt": [7] * count}) + "\n" for count in (99, 100, 64)))
    rejects, report = tmp_path / "rejects.jsonl", tmp_path / "report.json"
    command = ["analyze", str(log), *SIZES, "--max-model-len", "100", "--rejects", str(rejects)]
    assert main([*command, "--json", str(report)]) == 0
    trace = json.loads(report.read_bytes())["trace"]
    assert (trace["requests"], trace["rejected"], trace["rejected_by"]) == (2, 1, {"too_long": 1})
    assert trace["prompt_tokens"] == 163
    assert len(rejects.read_text().splitlines()) == 1
    assert f"{log}:2: too long for the server" in capsys.readouterr().err
    assert main([*command, "--force", "--strict"]) == 1
    assert main(["analyze", str(log), *SIZES, "--max-model-len", "64"]) == 3


def test_a_server_that_refuses_a_prompt_of_the_trace():
    config = EngineConfig(parse_groups("mamba:32*3,full:32"), max_model_len=64)
    with pytest.raises(UnusableInputError, match=r"wanted at most 63.*--max-model-len 64"):
        find(trace_of([[1] * 64]), config, AnalyzeOptions(), no_progress)
