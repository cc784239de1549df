"""`kvtune validate` against a vLLM server: from options to `kvtune.gpu_probe.live`, and its progress on stderr.

Knows options and the terminal; servers and verdicts are for `kvtune.gpu_probe.live`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvtune.cli.analysis_options import ModelOptions
from kvtune.cli.analyze import Analyzed
from kvtune.cli.output import has_colour, note
from kvtune.cli.probe import ProbeChoices
from kvtune.cli.traces import selection_of
from kvtune.tokenization.errors import MissingDependencyError, UnusableInputError

if TYPE_CHECKING:
    from kvtune.analyzers.layout import EngineConfig
    from kvtune.analyzers.report import Report, SizeSource
    from kvtune.analyzers.sizing.serve_command import ServeCommand
    from kvtune.analyzers.sizing.serve_flags import ServeFlags
    from kvtune.analyzers.step_times import StepTimes
    from kvtune.analyzers.validation import Validation
    from kvtune.cli.prepare import Prepared
    from kvtune.tokenization.request import Request

RUNS_ON_SERVER = 2
"""There and back again: each candidate's server is started twice."""
_LEAST_COLUMNS = 20


def with_served_model(model: ModelOptions, serve: str | None) -> ModelOptions:
    """The model of the serve command, where none was named."""
    if serve is None or model.model is not None:
        return model
    command = _serve_command(serve)
    return model if command is None else replace(model, model=command.model)


def _serve_command(text: str, flags: ServeFlags | None = None) -> ServeCommand | None:
    """A `vllm serve` line, read; None for a script that starts a server some other way."""
    from kvtune.analyzers.sizing.serve_command import parse_serve_command
    from kvtune.gpu_probe.live.command import parse_serve_line

    line = parse_serve_line(text)
    if not any(word == "serve" or word.endswith("openai.api_server") for word in line.words):
        return None
    return parse_serve_command([*(f"{name}={value}" for name, value in line.variables), *line.words], flags)


def validate_on_server(
    found: Analyzed,
    probe: ProbeChoices,
    slo: Mapping[str, float],
    *,
    quiet: bool,
) -> tuple[Report, Validation, bool]:
    """Replay there: the report, made anew for the sizes that the server resolved, the validation, and whether it was
    interrupted.

    Raises:
        MissingDependencyError: no such server, or the extra `live` is not installed.
        UnusableInputError: options that do not fit the trace.
    """
    _check_installed()
    from kvtune.cli.engine import serve_flags, size_sources
    from kvtune.gpu_probe.choosing import flag_of, units_to_validate
    from kvtune.gpu_probe.live.client import KEY_VARIABLE
    from kvtune.gpu_probe.live.command import parse_serve_line
    from kvtune.gpu_probe.live.options import Listener, LiveOptions, Subject
    from kvtune.gpu_probe.live.prediction import first_requests
    from kvtune.gpu_probe.live.validate import (
        measure_steps,
        steps_validation,
        validate_by_serving,
        validate_endpoint,
    )

    report, ready = found.report, found.ready
    asked = ready.asked

    def choose(config: EngineConfig) -> list[int | None]:
        nonlocal report
        if config != ready.server.config:
            source: SizeSource = "metrics" if probe.serve is None else "startup-log"
            resolved.append(replace(ready.server, config=config, size_source=source, assumed=()))
            report = found.analyze_on(resolved[-1])
        return [flag_of(report, unit) for unit in units_to_validate(report)]

    def with_times(times: StepTimes | None) -> Report:
        """The report on the server as it resolved its sizes, priced by what was measured on it."""
        return report if times is None else found.analyze_on(resolved[-1], step_times=times)

    resolved = [ready.server]

    flags = ready.serve.flags if ready.serve is not None else serve_flags(asked.engine)
    sized_by = asked.model.model
    command = _serve_command(probe.serve, flags) if probe.serve is not None else None
    if command is not None:
        flags = command.flags
        if command.model is not None and (Path(command.model) / "config.json").is_file():
            sized_by = command.model  # the kinds of its groups, whatever encodes the trace
    trace = ready.loaded.trace
    subject = Subject(
        trace if probe.requests is None else first_requests(trace, probe.requests),
        size_sources(flags, asked.sizes, sized_by),
        _chats(ready, probe.requests) if probe.as_chat else None,
    )
    options = LiveOptions(
        arrivals=asked.replay.arrivals,
        outputs=asked.replay.outputs,
        runs=probe.runs or RUNS_ON_SERVER,
        as_chat=probe.as_chat,
        slo=slo,
        step_times=ready.options.step_times,
        ready_timeout_s=probe.ready_timeout,
        log_dir=Path(probe.log_dir) if probe.log_dir else None,
        api_key=os.environ.get(KEY_VARIABLE),
        allow_traffic=probe.allow_traffic,
        measure_steps=probe.measure_steps,
    )
    serve_line = parse_serve_line(probe.serve) if probe.serve is not None else None
    if serve_line is not None and serve_line.unit is None:
        serve_line = replace(serve_line, unit=flags.prefix_match_unit)  # in force today, by --match-unit
    line = _StatusLine(quiet=quiet)
    listener = Listener(
        note=line.note,
        log_line=line.show,
        progress=lambda name, done, total: line.show(f"unit {name}: {done:,} of {total:,} requests"),
    )
    try:
        if probe.measure_steps:
            fitted = measure_steps(subject, serve_line, probe.endpoint, choose, options, listener)
            line.clear()
            line.note(fitted.sentence())
            times = fitted.step_times() if fitted.extrapolates else None
            return with_times(times), steps_validation(fitted), False
        if serve_line is not None:
            result = validate_by_serving(subject, serve_line, choose, options, listener)
        else:
            result = validate_endpoint(subject, probe.endpoint or "", choose, options, listener)
    finally:
        line.clear()
    if result.logs is not None:
        line.note(f"the servers' logs are in {result.logs}")
    line.note(result.verdict)
    return report, result.validation, result.interrupted


def _chats(ready: Prepared, requests: int | None) -> list[Request]:
    """The requests as logged, one for each of the trace."""
    from kvtune.tokenization.reading import read_trace

    if "-" in ready.files:
        raise UnusableInputError("cannot be read a second time", field="--as-chat", where="stdin")
    input = ready.asked.input
    logged = read_trace(
        ready.files,
        format=input.format,
        max_line_bytes=input.max_line_bytes,
        selection=selection_of(input, ready.asked.model),
    ).requests
    by_id = {request.id: request for request in logged}
    return [by_id[name] for name in ready.loaded.trace.ids[:requests]]


def _check_installed() -> None:
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "aiohttp is not installed, which talks to servers", way_out="pip install 'kvtune[live]'"
        ) from None


class _StatusLine:
    """One line at the bottom of a terminal that is written over; notes scroll above it."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._live = has_colour(sys.stderr) and not quiet
        self._shown = False

    def show(self, text: str) -> None:
        if not self._live:
            return
        width = max(_LEAST_COLUMNS, shutil.get_terminal_size().columns - 1)
        printable = "".join(character if character.isprintable() else " " for character in text)
        sys.stderr.write(f"\r\x1b[2K{printable[:width]}")
        sys.stderr.flush()
        self._shown = True

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._shown = False

    def note(self, text: str) -> None:
        self.clear()
        note(text, quiet=self._quiet)
