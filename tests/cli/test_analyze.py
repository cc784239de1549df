"""`kvtune analyze` end to end on small traces of token ids: documents, streams, exit codes, rejected lines."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import jsonschema
import pytest

from kvtune.cli.schemas import FOLDER

GROUPS = "mamba:64,full:64"


def prompt(seed: int, length: int, head: int = 0) -> list[int]:
    """`length` ids, the first `head` of them common to all seeds."""
    return [*range(head), *(1_000 * (seed + 1) + index for index in range(length - head))]


def line(seed: int, length: int, head: int = 100, **fields: object) -> str:
    return json.dumps({"request_id": f"r{seed}", "token_ids": prompt(seed, length, head)} | fields)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Twelve requests in four sessions of three turns; turns extend one another, sessions share 100 tokens."""
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "".join(
            line(session, 150 + 40 * turn, session=f"s{session}", timestamp=10.0 * turn + session) + "\n"
            for turn in range(3)
            for session in range(4)
        )
    )
    return path


def analyzed(run, *arguments: str, code: int = 0) -> dict:
    done = run("analyze", *arguments, "--groups", GROUPS, "--json", "-")
    assert done.code == code, done.err
    document = json.loads(done.out)
    jsonschema.validate(document, json.loads((FOLDER / "report-1.json").read_text()))
    return document


def test_a_trace_gives_a_report_that_keeps_its_schema(run, trace: Path) -> None:
    document = analyzed(run, str(trace), "--per-request")
    assert document["trace"]["requests"] == 12
    assert document["trace"]["prompt_tokens"] == 4 * (150 + 190 + 230)
    assert document["trace"]["format"] == "token-ids"
    assert document["trace"]["sessions"] == 4
    assert document["trace"]["duration_s"] == 23.0
    assert document["tokenizer"]["kind"] == "ids"
    # Sessions share 100 tokens with the first; each later turn shares the whole turn before.
    assert document["shared"]["tokens"] == 3 * 100 + 4 * (150 + 190)
    assert document["shared"]["requests_sharing"] == 11
    assert [row["shared_tokens"] for row in document["requests"][:5]] == [0, 100, 100, 100, 150]


def test_losses_and_hits_sum_to_what_is_shared(run, trace: Path) -> None:
    document = analyzed(run, str(trace))
    for losses in document["losses"].values():
        assert sum(value for name, value in losses.items() if name != "unit") == document["shared"]["tokens"]
    recommended = document["recommendation"]["unit"]
    row = next(row for row in document["candidates"] if row["unit"] == recommended)
    assert row["engine_hit_tokens"] == document["losses"]["recommended"]["hit_tokens"]
    assert row["engine_hit_tokens"] + row["recomputed_tokens"] == document["trace"]["prompt_tokens"]


def test_units_that_were_not_asked_for_are_not_said_to_change_nothing(run, trace: Path) -> None:
    document = analyzed(run, str(trace), "--units", "64")
    advice = document["recommendation"]
    assert (advice["action"], advice["unit"], advice["confidence"]) == ("keep", 64, "medium")
    assert advice["why"] == "No other match unit was replayed."
    assert "No other match unit was replayed" in advice["caveats"][0]


def test_without_a_cache_nothing_is_advised_that_needs_one(run, trace: Path, tmp_path: Path) -> None:
    document = analyzed(run, str(trace), "--no-prefix-caching", "--capacity-curve")
    assert document["recommendation"]["action"] == "cannot_help"
    assert not any("pool" in text or "replicas" in text for text in document["recommendation"]["caveats"])
    assert [family["advice"] for family in document["families"]] == [
        ["prefix caching is off: nothing that it shares is reused"]
    ]
    page = tmp_path / "r.html"
    text = run(
        "analyze", str(trace), "--groups", GROUPS, "--no-prefix-caching", "--details", "--html", str(page)
    ).out
    assert "without prefix caching, nothing hits" in " ".join(text.split())
    assert "A repeated prompt hits" not in text
    assert "below the hit alignment" not in text + page.read_text()


def test_debug_checks_the_bookkeeping_and_changes_nothing(
    run, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = []
    monkeypatch.setattr("kvtune.analyzers.replay.check_integrity", lambda *_: checks.append(1))
    plain = analyzed(run, str(trace))
    assert checks == []
    checked = analyzed(run, str(trace), "--debug")
    assert len(checks) >= 12 * 2
    del plain["measured"], checked["measured"]
    assert checked == plain


def test_two_runs_differ_under_measured_only(run, trace: Path) -> None:
    first, second = (analyzed(run, str(trace), "--seed", "7") for _ in range(2))
    del first["measured"], second["measured"]
    assert first == second


def test_the_command_in_the_report_gives_the_report_again(run, trace: Path) -> None:
    document = analyzed(run, str(trace), "--units", "8,16", "--step-cost-tokens", "32")
    words = document["command"].split()
    assert words[:2] == ["kvtune", "analyze"]
    done = run(*words[1:], "--json", "-")
    again = json.loads(done.out)
    del document["measured"], again["measured"]
    assert again == document


def test_a_refused_unit_is_a_struck_row(run, trace: Path) -> None:
    document = analyzed(run, str(trace), "--units", "8,48")
    row = next(row for row in document["candidates"] if row["unit"] == 48)
    assert (row["valid"], row["engine_hit_tokens"]) == (False, None)
    assert row["reason"]


def test_a_refused_unit_in_force_is_an_error(run, trace: Path, tmp_path: Path) -> None:
    done = run("analyze", str(trace), "--groups", GROUPS, "--match-unit", "48", "--json", "out.json")
    assert (done.code, done.out) == (2, "")
    assert "48" in done.err
    assert not (tmp_path / "out.json").exists()


def test_the_terminal_report_and_files_in_one_run(run, trace: Path, tmp_path: Path) -> None:
    done = run(
        "analyze", str(trace), "--groups", GROUPS, *("--json", "a.json", "--html", "a.html", "--md", "a.md")
    )
    assert done.code == 0
    assert "Where shared prefixes end" not in done.out
    assert done.err == ""
    assert json.loads((tmp_path / "a.json").read_text())["schema"] == "kvtune.report/1"
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    again = run("report", "a.json")
    assert again.out == done.out
    assert "Where shared prefixes end" in run("report", "a.json", "--details").out


def test_stdin_is_a_trace(run, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(trace.read_bytes())

    monkeypatch.setattr("sys.stdin", Stdin)
    assert analyzed(run, "-")["trace"]["files"] == ["-"]


def test_the_smallest_pool_admits_the_longest_request_and_one_less_names_it(run, trace: Path) -> None:
    found = analyzed(run, str(trace), "--match-unit", "16", "--capacity-curve")["footprint"]
    needs = found["current"]
    assert needs["unit"] == 16
    assert needs["minimum_pool_blocks"] < needs["minimum_pool_on_hit_blocks"]
    enough = str(needs["minimum_pool_on_hit_blocks"])
    assert analyzed(run, str(trace), "--match-unit", "16", "--num-blocks", enough)["replay"]["refused"] == []
    less = str(needs["minimum_pool_blocks"] - 1)
    refused = analyzed(run, str(trace), "--match-unit", "16", "--num-blocks", less)["replay"]["refused"]
    assert {"id": found["longest_request"], "blocks_needed": int(enough) - 1} in refused


def test_what_overlapping_requests_pin_is_only_replayed_for_the_ladder(run, trace: Path) -> None:
    needs = analyzed(run, str(trace), "--arrivals", "trace")["footprint"]["current"]
    assert (needs["most_pinned"], needs["pinned_at_end"]) == (None, None)
    assert needs["minimum_pool_blocks"] > 1


@pytest.mark.parametrize(
    "options",
    [(), ("--arrivals", "trace"), ("--replicas", "2"), ("--num-blocks", "40", "--match-unit", "16")],
)
def test_the_ladder_of_pools_goes_with_every_replay(run, trace: Path, options: tuple[str, ...]) -> None:
    document = analyzed(run, str(trace), "--capacity-curve", *options)
    top = max(point["num_blocks"] for point in document["capacity"])
    swept = {row["unit"]: row["engine_hit_tokens"] for row in document["candidates"]}
    for point in document["capacity"]:
        if point["num_blocks"] == top:
            assert point["evicted_blocks"] == 0
            if "--num-blocks" not in options:
                assert point["engine_hit_tokens"] == swept[point["unit"]]
    assert (document["footprint"]["enough_blocks"] is None) == bool({"trace", "40"} & set(options))
    assert document["footprint"]["current"]["most_pinned"]["max"] > 0
    if "--num-blocks" in options:
        at = {
            point["unit"]: point["engine_hit_tokens"]
            for point in document["capacity"]
            if point["num_blocks"] == 40
        }
        assert at == {unit: swept[unit] for unit in at}


def test_rejected_lines_are_named_counted_and_kept(run, trace: Path, tmp_path: Path) -> None:
    good = trace.read_text()
    broken = '{"token_ids": [1, "secret"]}\n{"token_ids": []}\n'
    trace.write_text(broken + good)
    done = run("analyze", str(trace), "--groups", GROUPS, "--json", "r.json", "--rejects", "bad.jsonl")
    assert done.code == 0
    assert f"{trace}:1" in done.err
    assert f"{trace}:2" in done.err
    assert "secret" not in done.err + done.out
    assert (tmp_path / "bad.jsonl").read_text() == broken
    assert json.loads((tmp_path / "r.json").read_text())["trace"]["rejected"] == 2
    strict = run("analyze", str(trace), "--groups", GROUPS, "--strict", "--quiet")
    assert (strict.code, strict.err) == (1, "")
    assert "2 lines" in strict.out


def test_many_rejected_lines_are_summed_up(run, trace: Path) -> None:
    trace.write_text("{}\n" * 30 + trace.read_text())
    done = run("analyze", str(trace), "--groups", GROUPS)
    assert done.err.count("left out") == 11
    assert "20 more lines" in done.err


@pytest.mark.parametrize("text", ["", "{}\n", "nonsense\n"])
def test_a_trace_without_a_usable_request_exits_3(run, tmp_path: Path, text: str) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    done = run("analyze", "t.jsonl", "--groups", GROUPS, "--json", "out.json", "--rejects", "bad.jsonl")
    assert (done.code, done.out) == (3, "")
    assert not (tmp_path / "out.json").exists()
    assert not (tmp_path / "bad.jsonl").exists()


def test_text_without_a_model_exits_2_and_says_what_to_give(run, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"model": "gpt", "messages": [{"role": "user", "content": "hi"}]}\n')
    done = run("analyze", "t.jsonl", "--groups", GROUPS)
    assert done.code == 2
    assert "--model" in done.err


def test_without_sizes_the_error_asks_for_groups(run, trace: Path) -> None:
    done = run("analyze", str(trace))
    assert done.code == 2
    assert "--groups" in done.err


@pytest.mark.parametrize("arguments", [["--units", "x"], ["--window", "soon"], ["--groups", "full"]])
def test_unusable_options_fail_before_anything_is_read(run, arguments: list[str]) -> None:
    done = run("analyze", "missing.jsonl", "--groups", GROUPS, *arguments)
    assert done.code == 2
    assert arguments[0] in done.err


def test_existing_files_are_refused_before_the_work(run, tmp_path: Path) -> None:
    (tmp_path / "out.json").touch()
    done = run("analyze", "missing.jsonl", "--groups", GROUPS, "--json", "out.json")
    assert done.code == 2
    assert "--force" in done.err


def test_an_anonymous_trace_gives_the_same_figures(run, trace: Path, tmp_path: Path) -> None:
    done = run("anonymize", str(trace), "-o", "anonymous.jsonl.gz")
    assert done.code == 0
    first, second = analyzed(run, str(trace)), analyzed(run, "anonymous.jsonl.gz")
    for part in ("shared", "candidates", "losses", "recommendation"):
        assert second[part] == first[part], part
    before = (tmp_path / "anonymous.jsonl.gz").read_bytes()
    assert run("anonymize", str(trace), "-o", "anonymous.jsonl.gz", "--force").code == 0
    assert (tmp_path / "anonymous.jsonl.gz").read_bytes() == before


def test_the_model_that_the_trace_names_encodes_it_and_gives_the_sizes(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Path(__file__).parents[2] / "samples" / "tiny-hybrid"
    monkeypatch.setattr(
        "kvtune.tokenization.hub._snapshot", lambda name: model if name == "us/tiny" else None
    )
    chats = [{"model": "us/tiny", "messages": [{"role": "user", "content": f"Hello {n}"}]} for n in range(3)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    done = run("analyze", "t.jsonl", "--json", "-")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["engine"]["source"] == "model-config"
    assert document["tokenizer"]["source"] == str(model / "tokenizer.json")


def test_a_broken_vocabulary_is_one_error_and_no_rejected_request(run, tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parents[2] / "samples" / "tiny-hybrid", tmp_path / "broken")
    (tmp_path / "broken" / "tokenizer.json").write_text("{broken")
    chats = [{"messages": [{"role": "user", "content": f"Hello {n}"}]} for n in range(3)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    done = run("analyze", "chats.jsonl", "--model", "broken")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "cannot be loaded as a tokenizer" in done.err
    # A trace of ids needs no vocabulary.
    (tmp_path / "ids.jsonl").write_text(json.dumps({"prompt": [1, 2, 3]}) + "\n")
    assert run("analyze", "ids.jsonl", "--model", "broken").code == 0


def test_a_grid_that_is_no_unit_has_its_row(run, trace: Path) -> None:
    done = run("analyze", str(trace), "--groups", "full:16,swa:32:window=64", "--details")
    table = done.out.split("Match units")[1].split("Hits and gains")[0]
    assert [line.split()[:3] for line in table.splitlines() if line.startswith("→")] == [["→", "32", "–"]]
