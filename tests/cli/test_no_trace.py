"""`analyze` without a trace, and `--check-trace`: what is there, what is missing, what to do next."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvtune.cli.app import app
from kvtune.cli.no_trace import server_of

ROOT = Path(__file__).parents[2]
METRICS = ROOT / "tests" / "data" / "live" / "metrics-0.32.0.txt"
LENGTHS = (
    'vllm:request_prompt_tokens_bucket{engine="0",le="100.0",model_name="tiny"} 3.0\n'
    'vllm:request_prompt_tokens_bucket{engine="0",le="+Inf",model_name="tiny"} 4.0\n'
)


@pytest.fixture
def kvtune() -> Callable[..., tuple[int, str]]:
    def run(*arguments: object) -> tuple[int, str]:
        found = CliRunner().invoke(app, [str(one) for one in arguments])
        return found.exit_code, " ".join(found.output.split())

    return run


def test_the_metrics_page_answers_what_it_can(kvtune: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    page = tmp_path / "metrics.txt"
    page.write_text(METRICS.read_text() + LENGTHS)
    code, text = kvtune("analyze", "--metrics", page, "--json", tmp_path / "a.json")
    assert code == 0
    assert "No trace: no recommendation." in text
    assert "Token hit rate 52.1% since the server started: 4,224 of 8,100 prompt tokens." in text
    assert "75.0% to 100.0% of 4 prompts are shorter than 129 tokens" in text
    assert "No match unit can gain more than 3,872 tokens (47.8% of all prompt tokens)." in text
    assert "kvtune capture --to http://127.0.0.1:8000 -o trace.jsonl" in text
    assert "--prefix-match-unit" not in text
    traffic = json.loads((tmp_path / "a.json").read_text())["traffic"]
    assert traffic["most_gain_tokens"] == 3_872


def test_resolve_says_the_same(kvtune: Callable[..., tuple[int, str]]) -> None:
    code, text = kvtune("resolve", "--metrics", METRICS)
    assert code == 0
    assert "Token hit rate 52.1% since the server started" in text


def test_a_server_without_traffic(kvtune: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    page = tmp_path / "metrics.txt"
    page.write_text(
        "\n".join(line for line in METRICS.read_text().splitlines() if "prefix_cache_" not in line[:30])
    )
    code, text = kvtune("analyze", "--metrics", page)
    assert code == 0
    assert "send requests first" in text


def test_neither_trace_nor_metrics(kvtune: Callable[..., tuple[int, str]]) -> None:
    assert kvtune("analyze")[0] == 2


def test_the_server_of_a_page() -> None:
    assert server_of("http://gpu-0:8000/metrics") == "http://gpu-0:8000"
    assert server_of("metrics.txt") == "http://127.0.0.1:8000"


def _trace(tmp_path: Path, *usages: dict | None) -> Path:
    path = tmp_path / "t.jsonl"
    lines = [{"id": f"r{n}", "prompt": [1, 2, 3, 4, n], "usage": usage} for n, usage in enumerate(usages)]
    path.write_text(
        "".join(json.dumps({k: v for k, v in line.items() if v is not None}) + "\n" for line in lines)
    )
    return path


def test_check_trace_needs_no_server(kvtune: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    agrees = {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
    code, text = kvtune("analyze", _trace(tmp_path, agrees, agrees), "--check-trace")
    assert code == 0
    assert "ok 2 requests of format" in text
    assert "ok Prompt tokens: 2 of 2 requests agree with the log's own count" in text
    assert "ok Cached tokens: 8 logged" in text
    assert "! Tools: in no request" in text
    assert "! No times" in text


def test_check_trace_names_what_differs(kvtune: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    code, text = kvtune(
        "analyze", _trace(tmp_path, {"prompt_tokens": 5}, {"prompt_tokens": 9}), "--check-trace"
    )
    assert code == 0
    assert "! Prompt tokens: 1 of 2 requests agree with the log's own count (50.0%)." in text
    assert "First that differs: r1, 9 logged, 5 counted here." in text
    assert "! Cached tokens: not logged" in text


def test_a_long_id_is_shortened(kvtune: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        json.dumps({"id": "resp_" + "x" * 500, "prompt": [1, 2], "usage": {"prompt_tokens": 9}}) + "\n"
    )
    for more in (("--check-trace",), ("--groups", "full:16")):
        text = kvtune("analyze", path, *more)[1].replace(" ", "")
        assert "resp_" + "x" * 54 + "…,9logged" in text


def test_check_trace_without_counts(kvtune: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    assert "! Prompt tokens: not logged" in kvtune("analyze", _trace(tmp_path, None), "--check-trace")[1]


def test_the_report_shows_the_comparison(kvtune: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    groups = ("--groups", "full:16")
    trace = _trace(tmp_path, {"prompt_tokens": 6}, {"prompt_tokens": 6}, {"prompt_tokens": 6})
    for target in ("--md", "--html"):
        code, _ = kvtune("analyze", trace, *groups, target, tmp_path / "out", "--force")
        assert code == 0
        written = (tmp_path / "out").read_text()
        assert "own numbers" in written
        assert "0 of 3 requests agree" in written
    code, text = kvtune("analyze", trace, *groups)
    assert "0 of 3 requests agree" in text
    assert "1 more prompt token in every request: a BOS token" in text
