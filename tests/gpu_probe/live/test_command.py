"""The serve line of each start: what is added, replaced and hidden."""

from __future__ import annotations

import pytest

from kvtune.gpu_probe.live.command import parse_serve_line
from kvtune.tokenization.errors import UnusableInputError


def test_a_start_adds_its_flags_behind_the_users() -> None:
    line = parse_serve_line("vllm serve some/model --kv-cache-dtype fp8")
    assert line.start(16, 4000) == (
        *("vllm", "serve", "some/model", "--kv-cache-dtype", "fp8"),
        *("--host", "127.0.0.1", "--port", "4000", "--enable-prompt-tokens-details"),
        *("--prefix-match-unit", "16"),
    )
    assert "--prefix-match-unit" not in line.start(None, 4000)


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m --port 8000 --prefix-match-unit 32 --host 0.0.0.0 --enforce-eager",
        "vllm serve m --port=8000 --prefix_match_unit=32 --host=0.0.0.0 --enforce-eager",
        "vllm serve m --enforce-eager --enable-prompt-tokens-details --no-enable-prompt-tokens-details --uds /s "
        "--prefix-match-unit 32",
    ],
)
def test_flags_that_a_start_sets_itself_are_taken_out(text: str) -> None:
    line = parse_serve_line(text)
    assert line.words == ("vllm", "serve", "m", "--enforce-eager")
    assert line.unit == 32


def test_variables_in_front_go_into_the_environment() -> None:
    line = parse_serve_line("VLLM_X=1 Y='a b' vllm serve m")
    assert line.environment({"PATH": "/bin", "VLLM_X": "0"}) == {
        "VLLM_SERVER_DEV_MODE": "1",
        "PATH": "/bin",
        "VLLM_X": "1",
        "Y": "a b",
    }
    assert (
        parse_serve_line("VLLM_SERVER_DEV_MODE=0 vllm serve m").environment({})["VLLM_SERVER_DEV_MODE"] == "0"
    )
    assert line.shown(16, 9).startswith(
        "VLLM_SERVER_DEV_MODE=1 VLLM_X=1 Y='a b' vllm serve m --host 127.0.0.1 --port 9 "
    )


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m --api-key hunter2 --hf-token hunter2",
        "vllm serve m --api-key=hunter2 --hf_token=hunter2",
        "VLLM_API_KEY=hunter2 HF_TOKEN=hunter2 vllm serve m",
        "vllm serve m --api-key hunter2 hunter2b -tp 2",
    ],
)
def test_secrets_are_used_and_not_shown(text: str) -> None:
    line = parse_serve_line(text)
    assert line.api_key({}) == "hunter2"
    assert "hunter2" not in line.shown(None, 1)
    assert "***" in line.shown(None, 1)


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("vllm serve m --port 8000 --prefix_match_unit=32 --hf-overrides '{\"a\": 1}'", None),
        ("VLLM_X='a b' HF_TOKEN=hunter2 vllm serve m -tp 2", "'VLLM_X=a b' vllm serve m -tp 2"),
        ("vllm serve m --api-key hunter2 hunter2 -tp 2 --hf_token=hunter2", "vllm serve m -tp 2"),
        (
            "vllm serve m --hf-token hunter2 --max-num-batched-tokens 64",
            "vllm serve m --max-num-batched-tokens 64",
        ),
        ("docker run -e HF_TOKEN=hunter2 i --model m", "docker run -e 'HF_TOKEN=***' i --model m"),
        ("bash -c 'vllm serve m --api-key hunter2'", "bash -c 'vllm serve m --api-key ***'"),
        ("bash -c 'API_KEY=\"hunter2 x\" vllm serve m'", "bash -c 'API_KEY=***'"),
        ('vllm serve m --x \'{"api_key": "hunter2"}\'', "vllm serve m --x '{\"api_key\": ***'"),
        ("vllm serve m --env=HF_TOKEN=hunter2", "vllm serve m '--env=HF_TOKEN=***'"),
    ],
)
def test_the_line_for_a_report_is_the_same_without_secrets(text: str, again: str | None) -> None:
    line = parse_serve_line(text)
    told = line.retold()
    assert "hunter2" not in told
    if again is None:
        assert parse_serve_line(told) == line
    else:
        assert told == again
    assert "hunter2" not in line.shown(None, 1)


def test_a_flag_whose_name_only_sounds_secret_is_shown() -> None:
    shown = parse_serve_line("vllm serve m --max-num-batched-tokens 2048").shown(None, 1)
    assert "--max-num-batched-tokens 2048" in shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "A=1 B=2",
        "vllm serve 'open",
        "vllm serve m --prefix-match-unit",
        "vllm serve m --prefix-match-unit=x",
    ],
)
def test_no_command(text: str) -> None:
    with pytest.raises(UnusableInputError):
        parse_serve_line(text)
