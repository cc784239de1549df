"""A whole serve command behind `--`: `analyze` takes the server's settings from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvtune.cli.engine import split_serve_command
from kvtune.cli.reproduce import command_line

CONFIGS = Path(__file__).parents[1] / "data" / "models" / "configs"


@pytest.mark.parametrize(
    ("words", "traces", "serve"),
    [
        (["a.jsonl"], ["a.jsonl"], []),
        (["a.jsonl", "vllm", "serve", "m", "-tp", "2"], ["a.jsonl"], ["vllm", "serve", "m", "-tp", "2"]),
        (["a", "/opt/bin/vllm", "serve", "m"], ["a"], ["/opt/bin/vllm", "serve", "m"]),
        (["vllm"], ["vllm"], []),
        (["vllm", "a.jsonl"], ["vllm", "a.jsonl"], []),
    ],
)
def test_traces_end_where_the_serve_command_begins(
    words: list[str], traces: list[str], serve: list[str]
) -> None:
    assert split_serve_command(words) == (traces, serve)


def test_analyze_takes_the_servers_settings(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        json.dumps({"token_ids": list(range(3_000))}) + "\n" + json.dumps({"token_ids": list(range(3_100))})
    )
    serve = f"vllm serve {CONFIGS / 'qwen3.5-27b'} --kv-cache-dtype fp8 --prefix-match-unit 32 --port 80"
    done = run("analyze", "trace.jsonl", "--units", "32,224", "--json", "-", "--", *serve.split())
    assert done.code == 0, done.err
    assert "passed over in the serve command: --port" in done.err
    document = json.loads(done.out)
    engine = document["engine"]
    assert [(group["kind"], group["block_size"], group["count"]) for group in engine["groups"]] == [
        ("mamba", 1568, 3),
        ("full", 1568, 1),
    ]
    assert (engine["source"], engine["current_match_unit"]) == ("model-config", 32)
    assert document["command"].endswith(f"-- {serve.removesuffix(' --port 80')}")


def test_the_command_that_gives_the_report_again_ends_with_it() -> None:
    assert (
        command_line("analyze", ["a b"], serve=["vllm", "serve", "m"])
        == "kvtune analyze 'a b' -- vllm serve m"
    )
