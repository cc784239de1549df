"""kvtune.toml: precedence, the file that counts, paths, unusable keys and values, and the template."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from kvtune.cli.app import app, main
from kvtune.cli.options import options_of
from kvtune.cli.settings import find_settings, load_settings, long_options, settings_template
from kvtune.tokenization.errors import UnusableInputError

ANALYZE = get_command(app).commands["analyze"]
KNOWN = long_options(ANALYZE)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Runs `analyze` and returns the values that its options got."""
    monkeypatch.chdir(tmp_path)
    seen: dict[str, object] = {}

    def catch(_trace: object, *groups: object, write_prime: str | None) -> int:
        for group in groups:
            seen.update((name, value) for name, value, _ in options_of(group))
        return 0

    monkeypatch.setattr("kvtune.cli.analyze.run_analysis", catch)

    def options(*arguments: str) -> dict[str, object]:
        seen.clear()
        assert main(["analyze", *arguments]) == 0
        return dict(seen)

    return options


def test_flag_before_variable_before_file_before_default(given, monkeypatch: pytest.MonkeyPatch) -> None:
    assert given("t.jsonl")["step_cost_tokens"] is None
    Path("kvtune.toml").write_text("step-cost-tokens = 1\n")
    assert given("t.jsonl")["step_cost_tokens"] == "1"
    monkeypatch.setenv("KVTUNE_STEP_COST_TOKENS", "2")
    assert given("t.jsonl")["step_cost_tokens"] == "2"
    assert given("t.jsonl", "--step-cost-tokens", "3")["step_cost_tokens"] == "3"


def test_values_of_every_kind(given) -> None:
    Path("kvtune.toml").write_text(
        'match-unit = 96\nnum-blocks = "unlimited"\nunits = [16, 48]\nno-prefix-caching = true\narrivals = "trace"\n'
    )
    values = given("t.jsonl")
    assert values["match_unit"] == "96"
    assert values["num_blocks"] == "unlimited"
    assert values["units"] == "16,48"
    assert values["no_prefix_caching"] is True
    assert values["arrivals"] == "trace"


def test_the_file_beside_the_trace_counts_before_the_working_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_settings(["a/t.jsonl"]) is None
    Path("kvtune.toml").touch()
    assert find_settings(["a/t.jsonl"]) == Path("kvtune.toml")
    Path("a").mkdir()
    Path("a/kvtune.toml").touch()
    assert find_settings(["a/t.jsonl", "t.jsonl"]) == Path("a/kvtune.toml")
    assert find_settings(["-"]) == Path("kvtune.toml")


def test_paths_are_relative_to_the_file_and_hub_ids_stay(given, tmp_path: Path) -> None:
    (tmp_path / "a" / "tiny").mkdir(parents=True)
    settings = tmp_path / "a" / "kvtune.toml"
    settings.write_text('model = "tiny"\nchat-template = "t.jinja"\nrejects = "-"\ngroups = "full:16"\n')
    values = given("a/t.jsonl")
    assert values["model"] == str(Path("a/tiny"))
    assert values["chat_template"] == str(Path("a/t.jinja"))
    assert values["rejects"] == "-"
    assert values["groups"] == "full:16"
    settings.write_text('model = "Qwen/Qwen3-Next"\n')
    assert given("a/t.jsonl")["model"] == "Qwen/Qwen3-Next"


def test_keys_of_other_commands_are_known(given) -> None:
    Path("kvtune.toml").write_text("fail-if-worse = 5\nmax-num-seqs = 7\n")
    assert given("t.jsonl")["max_num_seqs"] == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-num-seq = 1", "the nearest is `max-num-seqs`"),
        ("match_unit = 1", "the nearest is `match-unit`"),
        ("init = true", "is no option"),
        ("groups = {}", "has an unusable type"),
        ("units = []", "has an unusable type"),
        ("units = [true]", "has an unusable type"),
        ("groups =", "cannot be read"),
        ("a = " + "[" * 5000, "cannot be read"),
    ],
)
def test_unusable_files_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "kvtune.toml"
    path.write_text(text)
    with pytest.raises(UnusableInputError) as caught:
        load_settings(path, KNOWN)
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_a_value_that_an_option_refuses_names_where_it_came_from(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = "--arrivals: 'later' is not one of 'sequential', 'trace'\n"
    assert run("analyze", "t.jsonl", "--arrivals", "later").err == f"kvtune: {wanted}"
    (tmp_path / "kvtune.toml").write_text('arrivals = "later"\n')
    done = run("analyze", "t.jsonl")
    assert (done.code, done.err) == (2, f"kvtune: kvtune.toml: {wanted}")
    monkeypatch.setenv("KVTUNE_ARRIVALS", "later")
    assert run("analyze", "t.jsonl").err == f"kvtune: KVTUNE_ARRIVALS: {wanted}"


def test_help_works_beside_a_broken_file(run, tmp_path: Path) -> None:
    (tmp_path / "kvtune.toml").write_text("nonsense")
    assert run("analyze", "--help").code == 0
    assert run("analyze", "-h").code == 0


def test_the_template_names_every_option_and_can_be_used(tmp_path: Path) -> None:
    text = settings_template(ANALYZE)
    assert tomllib.loads(text) == {}
    lines = [line[2:] for line in text.splitlines() if " = " in line]
    assert {line.split(" = ")[0] for line in lines} == KNOWN.keys() - {
        "help",
        "version",
        "init",
        "force",
        "trust-request-chat-template",
    }
    path = tmp_path / "kvtune.toml"
    path.write_text("\n".join(lines))
    load_settings(path, KNOWN)


def test_init_writes_the_file_once(run, tmp_path: Path) -> None:
    done = run("analyze", "--init")
    assert (done.code, done.out) == (0, "")
    assert "kvtune.toml" in done.err
    assert "# groups = " in (tmp_path / "kvtune.toml").read_text()
    assert run("analyze", "--init").code == 2
    assert run("analyze", "--init", "--force").code == 0


@pytest.mark.parametrize("line", ['serve = "rm -r /"', "force = true", 'endpoint = "http://203.0.113.1"'])
def test_a_file_beside_a_trace_starts_sends_and_overwrites_nothing(run, tmp_path: Path, line: str) -> None:
    (tmp_path / "kvtune.toml").write_text(line + "\n")
    done = run("analyze", "trace.jsonl")
    assert done.code == 2
    assert "is not taken from a file" in done.err
