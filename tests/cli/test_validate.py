"""`kvtune validate` at the command line: ways to run, stored reports, exit codes."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvtune.cli.app import main

pytest.importorskip("torch")

SAMPLES = Path(__file__).parents[2] / "samples"
TRACE = str(SAMPLES / "functions.jsonl.gz")


def validate(*arguments: str) -> int:
    return main(["validate", *arguments, "--quiet", "--requests", "2", "--units", "176,528"])


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A report of the sample."""
    path = tmp_path / "report.json"
    assert main(["analyze", TRACE, "--quiet", "--units", "176,528", "--json", str(path)]) == 0
    return path


def test_a_trace_is_analyzed_executed_and_reported(tmp_path, capsys):
    path = tmp_path / "v.json"
    assert validate(TRACE, "--json", str(path)) == 0
    text = capsys.readouterr().out
    assert "Execution agrees with the prediction." in text
    document = json.loads(path.read_bytes())
    found = document["validation"]
    assert found["agrees"]
    assert found["requests"] == 2
    assert [row["unit"] for row in found["candidates"]] == [1056, 176, 528]
    assert all(row["matched_tokens"] == row["predicted_tokens"] for row in found["candidates"])
    assert any("executed (L0 tiny model" in caveat for caveat in document["recommendation"]["caveats"])


def test_a_stored_report_opens_its_trace_again(stored, tmp_path, capsys):
    target = tmp_path / "v.json"
    assert main(["validate", str(stored), "--quiet", "--requests", "2", "--json", str(target)]) == 0
    capsys.readouterr()
    document = json.loads(target.read_bytes())
    assert document["trace"] == json.loads(stored.read_bytes())["trace"]
    assert document["validation"]["agrees"]


def test_an_option_that_the_report_states_is_refused_beside_it(stored, capsys):
    assert main(["validate", str(stored), "--quiet", "--units", "16"]) == 2
    assert "--units: is for the report to say" in capsys.readouterr().err


def test_a_changed_trace_is_refused(stored, capsys):
    document = json.loads(stored.read_bytes())
    document["trace"]["sha256"] = "0" * 64
    stored.write_text(json.dumps(document))
    assert main(["validate", str(stored), "--quiet", "--requests", "2"]) == 2
    assert "not the one that was analyzed" in capsys.readouterr().err


def test_a_report_of_stdin_is_refused(stored, capsys):
    document = json.loads(stored.read_bytes())
    document["command"] = document["command"].replace(TRACE, "-")
    stored.write_text(json.dumps(document))
    assert main(["validate", str(stored), "--quiet", "--requests", "2"]) == 2
    assert "stdin" in capsys.readouterr().err


def test_the_command_in_the_report_runs_the_same_again(tmp_path, capsys):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    asked = ("--device", "cpu", "--slo", "ttft=1,e2e=2", "--clock", "model", "--log-dir", str(tmp_path))
    assert validate(TRACE, *asked, "--json", str(first)) == 0
    document = json.loads(first.read_bytes())
    words = shlex.split(document["command"])
    assert words[:3] == ["kvtune", "validate", TRACE]
    assert words[-8:] == ["--device", "cpu", "--clock", "model", "--requests", "2", "--slo", "ttft=1,e2e=2"]
    assert main([*words[1:], "--quiet", "--json", str(second)]) == 0
    capsys.readouterr()
    again = json.loads(second.read_bytes())
    del document["measured"], again["measured"]
    assert again == document


@pytest.mark.parametrize("server", ["--serve", "--endpoint"])
def test_a_stored_command_starts_and_asks_nothing(server, stored, tmp_path, capsys):
    """The probe is the one of today, whatever the file names."""
    mark, target = tmp_path / "mark", tmp_path / "v.json"
    program = shlex.join([sys.executable, "-c", f"open({str(mark)!r}, 'w')"])
    named = (server, program if server == "--serve" else "http://127.0.0.1:9")
    probe = shlex.join([*named, "--clock", "wall", "--runs", "50", "--slo", "ttft=1", "--log-dir", str(mark)])
    document = json.loads(stored.read_bytes())
    document["command"] = document["command"].replace("kvtune analyze", "kvtune validate") + " " + probe
    stored.write_text(json.dumps(document))
    assert main(["validate", str(stored), "--quiet", "--requests", "2", "--json", str(target)]) == 0
    capsys.readouterr()
    assert not mark.exists()
    document = json.loads(target.read_bytes())
    found = document["validation"]
    assert (found["device"], found["runs"], found["slo"]) == ("CPU, 1 thread", 1, None)
    assert document["command"].endswith("--units 176,528 --requests 2")


def test_a_self_check_names_neither_sample_nor_model_and_is_one_again(tmp_path, capsys):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    assert validate("--json", str(first)) == 0
    document = json.loads(first.read_bytes())
    assert document["command"] == "kvtune validate --units 176,528 --requests 2"
    assert main(["validate", str(first), "--quiet", "--requests", "2", "--json", str(second)]) == 0
    capsys.readouterr()
    again = json.loads(second.read_bytes())
    del document["measured"], again["measured"]
    assert again == document


def test_the_model_of_a_serve_command_behind_two_dashes_is_run(monkeypatch, tmp_path, capsys):
    from kvtune.gpu_probe import validate as probe

    class ReachedError(Exception):
        pass

    def seen(_trace, _config, _units, options, _progress):
        assert options.model == SAMPLES / "tiny-hybrid"
        raise ReachedError

    monkeypatch.setattr(probe, "validate_on_engine", seen)
    stored = tmp_path / "report.json"
    serve = ("--", "vllm", "serve", str(SAMPLES / "tiny-hybrid"))
    (tmp_path / "t.jsonl.gz").write_bytes(Path(TRACE).read_bytes())
    asked = ("analyze", str(tmp_path / "t.jsonl.gz"), "--groups", "mamba:528,full:528", "--units", "528")
    assert main([*asked, "--quiet", "--json", str(stored), *serve]) == 0
    assert main(["validate", str(stored), "--quiet"]) == 70
    assert "ReachedError" in capsys.readouterr().err


def test_disagreement_exits_with_1_and_shows_both_figures(monkeypatch, tmp_path, capsys):
    from kvtune.gpu_probe.engine import runner

    original = runner.Run.run

    def wrong(self):
        record = original(self)
        record.hit_tokens[-1] += 1
        return record

    monkeypatch.setattr(runner.Run, "run", wrong)
    path = tmp_path / "v.json"
    assert validate(TRACE, "--json", str(path)) == 1
    assert "Execution DIFFERS from the prediction." in capsys.readouterr().out
    document = json.loads(path.read_bytes())
    assert document["recommendation"]["confidence"] == "low"
    assert any(
        "predicted" in caveat and "matched" in caveat for caveat in document["recommendation"]["caveats"]
    )


def test_an_interrupted_run_is_reported_and_exits_with_130(monkeypatch, tmp_path, capsys):
    from kvtune.gpu_probe import validate as probe

    original = probe.validate_on_engine
    monkeypatch.setattr(
        probe, "validate_on_engine", lambda *given: replace(original(*given), interrupted=True)
    )
    path = tmp_path / "v.json"
    assert validate(TRACE, "--json", str(path)) == 130
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "Validated" in printed.out
    assert json.loads(path.read_bytes())["validation"]["requests"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu", "--device", "cpu"], "only one of these"),
        (["--endpoint", "http://127.0.0.1:1", "--gpu"], "only one of these"),
        (["--as-chat"], "--as-chat: says nothing to the bundled engine (wanted --serve or --endpoint"),
        (["--endpoint", "http://127.0.0.1:1", "--exact"], "--exact: says nothing to a server"),
        (["--route", "random"], "--route: chooses among --replicas"),
        (["--slo", "ttft"], "is no objective"),
        (["--slo", "ttft=0.5,speed=3"], "is no objective"),
        (["--slo", "tpot=-1"], "is no objective"),
    ],
)
def test_unusable_options_are_refused(arguments, words, capsys):
    assert validate(TRACE, *arguments) == 2
    assert words in capsys.readouterr().err


def test_gpu_without_a_gpu_exits_with_4(capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    for arguments in (["--gpu"], ["--device", "cuda"], ["--gpu", "--measure-steps"]):
        assert main(["validate", *arguments]) == 4
        error = capsys.readouterr().err
        assert "there is no GPU for --gpu" in error
        assert error.count("\n") == 1


def test_the_model_clock_gives_the_same_bytes_but_for_what_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    documents = []
    for name in ("a.json", "b.json"):
        objectives = ("--slo", "ttft=1,e2e=2")
        assert validate(TRACE, *objectives, "--json", str(tmp_path / name)) == 0
        document = json.loads((tmp_path / name).read_bytes())
        assert all(row["largest_rate"] >= 1 for row in document["validation"]["candidates"])
        del document["measured"]
        documents.append(json.dumps(document))
    capsys.readouterr()
    assert documents[0] == documents[1]


def test_steps_measured_on_the_bundled_engine_stand_in_the_report(tmp_path, monkeypatch):
    """Whatever the machine's noise: a fit with its held-out error, and one that is too far off says why."""
    from kvtune.gpu_probe.engine import calibrate

    monkeypatch.setattr(calibrate, "PREFILLS", (16, 64))
    monkeypatch.setattr(calibrate, "BUDGET_S", 0.0)
    path = tmp_path / "steps.json"
    validate(TRACE, "--device", "cpu", "--measure-steps", "--json", str(path))
    found = json.loads(path.read_bytes())["validation"]
    assert found["clock"] == "virtual"
    assert found["step_cost"]["held_out"] > 0
    assert found["step_cost"]["extrapolates"] == (found["step_cost"]["reason"] is None)
