"""What a user says of a log on the command line, and what a log that lost its prompts comes to."""

from __future__ import annotations

import json
from pathlib import Path

GROUPS = ("--groups", "mamba:64,full:64")
MODEL = ("--model", str(Path(__file__).parents[2] / "samples" / "tiny-hybrid"))


def write(path: Path, *records: dict[str, object]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def body(turn: int, **more: object) -> dict[str, object]:
    turns = [{"role": "user", "content": f"question {number} " * 30} for number in range(turn + 1)]
    return {"model": "m", "messages": [{"role": "system", "content": "Help. " * 50}, *turns]} | more


def test_a_log_without_its_tools_advises_no_unit(run, tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    rows = []
    for turn in range(12):
        row = body(turn)
        messages = row["messages"]
        assert isinstance(messages, list)
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "7"},
        ]
        rows.append({"timestamp": turn, "request": row})
    done = run("analyze", write(tmp_path / "t.jsonl", *rows), *MODEL, *GROUPS, "--json", "-")
    advice = json.loads(done.out)["recommendation"]
    assert (advice["action"], advice["unit"], advice["flags"]) == ("cannot_help", advice["current_unit"], [])
    assert any("without tool definitions" in caveat for caveat in advice["caveats"])
    shown = run("analyze", str(tmp_path / "t.jsonl"), *MODEL, *GROUPS)
    assert "This log cannot decide the match unit" in shown.out


def test_options_about_a_log(run, tmp_path: Path) -> None:
    rows = [
        {"request": body(turn), "team": "ab"[turn % 2], "when": {"queued": 100 - turn}} for turn in range(6)
    ]
    file = write(tmp_path / "t.jsonl", *rows)
    chosen = run(
        "analyze", file, *MODEL, *GROUPS, "--only", "team=a", "--only", "team=c", "--time-field", "when.queued",
        "--isolate-by", "team", "--json", "-", "--per-request",
    )  # fmt: skip
    document = json.loads(chosen.out)
    assert (document["trace"]["requests"], document["trace"]["namespaces"]) == (3, 1)
    lengths = [row["prompt_tokens"] for row in document["requests"]]
    assert lengths == sorted(lengths, reverse=True)
    both = json.loads(run("analyze", file, *MODEL, *GROUPS, "--isolate-by", "team", "--json", "-").out)
    assert both["trace"]["namespaces"] == 2
    wrong = run("analyze", file, *MODEL, *GROUPS, "--only", "team")
    assert (wrong.code, "FIELD=VALUE" in wrong.err) == (2, True)
    turned = run("analyze", file, *MODEL, *GROUPS, "--order", "newest", "--json", "-", "--per-request")
    lengths = [row["prompt_tokens"] for row in json.loads(turned.out)["requests"]]
    assert lengths == sorted(lengths, reverse=True)


def test_several_values_of_only_in_a_file_and_in_the_command(run, tmp_path: Path) -> None:
    rows = [{"request": body(turn), "team": "abc"[turn % 3]} for turn in range(6)]
    file = write(tmp_path / "t.jsonl", *rows)
    (tmp_path / "kvtune.toml").write_text('only = ["team=a", "team=c"]\n')
    document = json.loads(run("analyze", file, *MODEL, *GROUPS, "--json", "-").out)
    assert document["trace"]["requests"] == 4
    assert "--only team=a --only team=c" in document["command"]


def test_a_release_without_the_option_is_told_what_an_upgrade_would_bring(run, tmp_path: Path) -> None:
    """Twelve prompts of 600 tokens with 570 in common, below the one block of 784: nothing hits before an upgrade."""
    log = tmp_path / "server.log"
    log.write_text(
        "INFO vLLM API server version 0.23.0\n"
        "INFO Mamba cache mode is set to 'align' for Qwen3_5ForConditionalGeneration by default\n"
        "INFO Setting attention block size to 784 tokens to ensure that ...\n"
    )
    rows: list[dict[str, object]] = [
        {
            "timestamp": turn,
            "prompt_token_ids": [*range(570), *range(1000 * (turn + 1), 1000 * (turn + 1) + 30)],
        }
        for turn in range(12)
    ]
    trace = write(tmp_path / "t.jsonl", *rows)
    done = run("analyze", trace, "--startup-log", str(log), "--json", "-")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    advice = report["recommendation"]
    assert (report["engine"]["version"], advice["action"], advice["confidence"]) == ("0.33.0", "set", "low")
    assert any("vLLM 0.23.0 has no match unit" in caveat for caveat in advice["caveats"])
    typed = json.loads(
        run("analyze", trace, "--startup-log", str(log), "--engine-version", "0.30", "--json", "-").out
    )
    assert typed["engine"]["version"] == "0.30"
    assert any("--engine-version 0.30 is used" in caveat for caveat in typed["recommendation"]["caveats"])
    assert not any("has no match unit" in caveat for caveat in typed["recommendation"]["caveats"])


def test_an_adapter_s_path_is_part_of_the_key_from_0_31_on(run, tmp_path: Path) -> None:
    """Two prompts of 40 ids under one adapter name with two paths: 32 tokens hit up to 0.30, none from 0.31 on."""
    rows: list[dict[str, object]] = [
        {
            "timestamp": turn,
            "token_ids": [*range(100, 140)],
            "lora_request": {"lora_name": "a", "lora_path": path},
        }
        for turn, path in enumerate(("/x", "/y"))
    ]
    trace = write(tmp_path / "t.jsonl", *rows)
    for release, hits in (("0.26", 32), ("0.30", 32), ("0.31", 0), ("0.33", 0)):
        done = run("analyze", trace, "--groups", "full:16", "--engine-version", release, "--json", "-")
        assert json.loads(done.out)["losses"]["current"]["hit_tokens"] == hits, release


def test_an_algorithm_that_is_not_timed_is_named(run, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"timestamp": turn, "token_ids": [*range(100, 180)]} for turn in range(3)
    ]
    trace = write(tmp_path / "t.jsonl", *rows)

    def caveats(*options: str) -> str:
        done = run("analyze", trace, "--groups", "full:16", "--json", "-", *options)
        return " ".join(json.loads(done.out)["recommendation"]["caveats"])

    assert "timed with sha256; the server uses xxhash" in caveats("--hash-algo", "xxhash")
    assert "Hashing was timed" not in caveats() + caveats("--hash-algo", "sha256")
