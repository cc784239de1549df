"""`analyze --write-prime`: common heads as requests that kvtune reads again and a server takes."""

from __future__ import annotations

import json
from pathlib import Path

LINES = [
    {
        "custom_id": f"r{index}",
        "url": "/v1/completions",
        "body": {
            "model": "m",
            "cache_salt": "s",
            "prompt": [*range(361), *range(1000 * (index + 1), 1000 * (index + 1) + 200)],
        },
    }
    for index in range(6)
]
ARGUMENTS = ("--groups", "mamba:528,full:528", "--step-cost-tokens", "0", "--quiet")


def write_trace(path: Path, lines: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_prime_lets_everyone_resume(run, tmp_path: Path) -> None:
    # A head of 361 tokens in six prompts of 561: sent once with the unit that lands in it, all reuse 352.
    write_trace(tmp_path / "t.jsonl", LINES)
    done = run("analyze", "t.jsonl", *ARGUMENTS, "--write-prime", "prime.jsonl", "--json", "report.json")
    assert done.code == 0, done.err
    (line,) = map(json.loads, (tmp_path / "prime.jsonl").read_text().splitlines())
    assert line["body"] == {
        "model": "m",
        "prompt": LINES[0]["body"]["prompt"][:362],
        "max_tokens": 1,
        "cache_salt": "s",
    }  # type: ignore[index]
    levers = json.loads((tmp_path / "report.json").read_text())["levers"]
    prime = next(lever for lever in levers if lever["kind"] == "prime")
    unit = int(prime["flags"][0].split()[1])
    assert prime["gain_tokens"] == 6 * (361 // unit * unit) - 362

    # Sent before the trace, it does what was promised.
    write_trace(tmp_path / "after.jsonl", [line, *LINES])
    again = run("analyze", "after.jsonl", *ARGUMENTS, "--match-unit", str(unit), "--json", "after.json")
    assert again.code == 0, again.err
    losses = json.loads((tmp_path / "after.json").read_text())["losses"]["current"]
    assert losses["hit_tokens"] == 6 * (361 // unit * unit)


def test_a_file_that_exists_is_kept(run, tmp_path: Path) -> None:
    write_trace(tmp_path / "t.jsonl", LINES)
    (tmp_path / "prime.jsonl").write_text("mine")
    done = run("analyze", "t.jsonl", *ARGUMENTS, "--write-prime", "prime.jsonl")
    assert done.code == 2
    assert "--force" in done.err
    assert (tmp_path / "prime.jsonl").read_text() == "mine"


def test_nothing_to_prime_is_said(run, tmp_path: Path) -> None:
    write_trace(tmp_path / "t.jsonl", LINES[:1])
    done = run("analyze", "t.jsonl", "--groups", "full:16", "--write-prime", "prime.jsonl")
    assert done.code == 0
    assert "prime.jsonl is empty" in done.err
    assert (tmp_path / "prime.jsonl").read_bytes() == b""
