"""What is said of a server that did not come up, from logs in the shape of real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtune.gpu_probe.live.failure import died_while_loading, never_ready

TAIL = """
(EngineCore pid=9) ERROR 11-30 07:09:46 [core.py:1137] EngineCore failed to start.
(EngineCore pid=9) ERROR 11-30 07:09:46 [core.py:1137] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-30 07:09:46 [core.py:1137]   File "/x/core.py", line 1, in run
(EngineCore pid=9) ERROR 11-30 07:09:46 [core.py:1137] ValueError: Invalid prefix_match_unit=48; block sizes \
must be divisible by it.
(APIServer pid=8) Traceback (most recent call last):
(APIServer pid=8)   File "/x/launcher.py", line 2, in main
(APIServer pid=8) RuntimeError: Engine core initialization failed. See root cause above.
"""


def said(tmp_path: Path, text: str, code: int = 1) -> str:
    log = tmp_path / "server.log"
    log.write_text(text)
    error = died_while_loading(log, code)
    assert error.exit_code == 4
    assert "\n" not in str(error)
    assert str(log) in str(error)
    return str(error)


def test_the_first_hand_cause_is_named_not_the_follow_up(tmp_path: Path) -> None:
    assert "while loading (exit code 1): ValueError: Invalid prefix_match_unit=48;" in said(tmp_path, TAIL)


def test_an_old_release_without_the_flag(tmp_path: Path) -> None:
    text = "usage: vllm [-h]\nvllm: error: unrecognized arguments: --enable-x --prefix-match-unit 16\n"
    line = said(tmp_path, text, 2)
    assert "does not know --prefix-match-unit" in line
    assert "0.26 or newer" in line


def test_an_exception_that_goes_on_in_the_next_line(tmp_path: Path) -> None:
    text = "pydantic_core.ValidationError: 1 validation error\n  Value error, no such model type\nmore\n"
    assert "1 validation error Value error, no such model type; its log" in said(tmp_path, text)


def test_a_signal_and_an_empty_log(tmp_path: Path) -> None:
    assert "(signal SIGKILL); its log is kept" in said(tmp_path, "", -9)


def test_only_an_error_line(tmp_path: Path) -> None:
    assert "(exit code 2): vllm: error: unrecognized arguments: --no-such" in said(
        tmp_path, "usage\nvllm: error: unrecognized arguments: --no-such\n", 2
    )


@pytest.mark.parametrize("text", ["\x1b[31mx\x1b[0m" * 50_000, "\x00\xff" * 100_000, "Error\n" * 200_000])
def test_a_hostile_log_gives_one_short_printable_line(tmp_path: Path, text: str) -> None:
    line = said(tmp_path, text)
    assert len(line) < 600
    assert line.isprintable()


def test_a_log_that_is_gone(tmp_path: Path) -> None:
    assert "exit code 1" in str(died_while_loading(tmp_path / "none.log", 1))


def test_never_ready_shows_how_far_it_came(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "(Worker pid=5) INFO 11-30 07:10:22 [cpu_model_runner.py:68] Starting to load model m...\n"
    )
    error = never_ready(log, 30)
    assert error.exit_code == 4
    assert "not ready after 30 s (found last log line: Starting to load model m...)" in str(error)
