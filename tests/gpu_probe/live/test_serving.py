"""One start per candidate: the order, what the first start decides, and starts that go wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from kvtune.analyzers.layout import EngineConfig
from kvtune.gpu_probe.live import isolation
from kvtune.gpu_probe.live.command import ServeLine, parse_serve_line
from kvtune.gpu_probe.live.options import Listener, LiveOptions, Subject
from kvtune.gpu_probe.live.validate import LiveResult, validate_by_serving
from kvtune.gpu_probe.live.verdict import palindromic
from kvtune.tokenization.errors import MissingDependencyError
from tests.gpu_probe.live.scripted_server import GROUPS
from tests.gpu_probe.live.test_endpoint import SOURCES, WORKED_BY_HAND, trace

PROGRAM = f"{sys.executable} -m tests.gpu_probe.live.scripted_program serve m"


@pytest.fixture(autouse=True)
def short_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "QUIET_S", 0.05)


class Served:
    """Validates, and remembers what was said and resolved."""

    def __init__(self, logs: Path, units: tuple[int | None, ...] = (16,), runs: int = 1) -> None:
        self.notes: list[str] = []
        self.say = self.notes.append
        self.resolved: list[EngineConfig] = []
        self._units = units
        self._options = LiveOptions(runs=runs, log_dir=logs, ready_timeout_s=60)

    def validate(self, line: ServeLine) -> LiveResult:
        def choose(config: EngineConfig) -> tuple[int | None, ...]:
            self.resolved.append(config)
            return self._units

        listener = Listener(
            note=self.say, log_line=lambda text: None, progress=lambda name, done, total: None
        )
        return validate_by_serving(Subject(trace(), SOURCES), line, choose, self._options, listener)


def test_there_and_back_again() -> None:
    assert palindromic([None, 16, 32], 2) == [None, 16, 32, 32, 16, None]
    assert palindromic([None, 16], 3) == [None, 16, 16, None, None, 16]


def test_each_candidate_is_a_start_of_its_own(tmp_path: Path) -> None:
    served = Served(tmp_path / "logs", runs=2)
    result = served.validate(parse_serve_line(PROGRAM))
    assert result.validation.agrees
    assert result.validation.order == "unset 16 16 unset"
    assert [run.hits.tolist() for run in result.runs[1:3]] == [WORKED_BY_HAND] * 2
    assert result.runs[0].hits.tolist() == result.runs[3].hits.tolist() == [0, 0, 128, 128, 128, 128]
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [
        *("01-unset.log", "02-16.log", "03-16.log", "04-unset.log")
    ]
    base, candidate = result.validation.candidates
    assert (base.unit, base.matched_tokens, base.ttft_change) == (64, 512, None)
    assert (candidate.unit, candidate.matched_tokens) == (16, 656)
    assert candidate.ttft_change is not None
    assert candidate.ttft_change_ci95 is not None
    assert sum("--prefix-match-unit 16" in note for note in served.notes) == 2


def test_the_first_start_decides_the_others_by_what_it_resolved(tmp_path: Path) -> None:
    served = Served(tmp_path, units=(32, 16))
    result = served.validate(parse_serve_line(f"{PROGRAM} --prefix-match-unit 16"))
    assert result.validation.order == "16 32"
    (config,) = served.resolved
    assert config.groups == GROUPS
    assert (config.match_unit, config.num_blocks, config.max_num_batched_tokens) == (16, 4_096, 2_048)


def test_units_of_the_same_grid_are_started_once(tmp_path: Path) -> None:
    result = Served(tmp_path, units=(64, None, 16)).validate(parse_serve_line(PROGRAM))
    assert result.validation.order == "unset 16"


def test_what_was_finished_before_an_interrupt_is_kept(tmp_path: Path) -> None:
    served = Served(tmp_path)

    def interrupt(text: str) -> None:
        if "--prefix-match-unit 16" in text:
            raise KeyboardInterrupt

    served.say = interrupt
    result = served.validate(parse_serve_line(PROGRAM))
    assert result.interrupted
    assert result.validation.order == "unset"
    assert result.validation.agrees


def test_a_unit_that_is_taken_and_not_applied(tmp_path: Path) -> None:
    result = Served(tmp_path).validate(parse_serve_line(f"{PROGRAM} --ignore-unit"))
    assert not result.validation.agrees
    said = " | ".join(result.validation.differences)
    assert "unit 16: the probe prompt" in said
    assert "the flag has no effect" in said


def test_a_flag_that_does_not_reach_the_server(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError, match=r"another match unit .* \(found unset, wanted 16\)"):
        Served(tmp_path).validate(parse_serve_line(f"{PROGRAM} --forget-unit"))


def test_a_candidate_that_the_server_refuses(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError, match="Invalid prefix_match_unit=16") as caught:
        Served(tmp_path).validate(parse_serve_line(f"{PROGRAM} --refuse-unit 16"))
    assert str(tmp_path / "02-16.log") in str(caught.value)


def test_a_server_that_dies_while_serving(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError) as caught:
        Served(tmp_path).validate(parse_serve_line(f"{PROGRAM} --die-at 4"))
    assert "the server died while serving (exit code 3): RuntimeError: out of everything" in str(caught.value)
    assert str(tmp_path / "01-unset.log") in str(caught.value)
