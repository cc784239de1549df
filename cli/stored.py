"""A stored report whose trace is opened again: whether a file is one, and what its command asked for.

A report may come from a stranger. Its command decides what is analyzed; what it would start, send, write or trust is
for the command line of today. Knows reports and their commands; nothing is run here.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kvtune.cli.analysis_options import AnalysisOptions
from kvtune.cli.options import filled, long_name, options_of
from kvtune.cli.report import MAX_REPORT_BYTES
from kvtune.cli.reproduce import DECIDES_NOTHING
from kvtune.tokenization.errors import UnusableInputError

if TYPE_CHECKING:
    from kvtune.analyzers.report import Report

_OF_TODAY = DECIDES_NOTHING | {"trust_request_chat_template"}
"""Options of an analysis that are not the report's to say."""


def stored_report(path: str) -> Report | None:
    """The report in a file; None for anything else.

    Raises:
        UnusableInputError: a document of kvtune that is no report, or not of this schema.
    """
    from msgspec import DecodeError

    from kvtune.analyzers.document import decode_report, schema_of

    place = Path(path)
    if place.suffix != ".json" or not place.is_file() or place.stat().st_size > MAX_REPORT_BYTES:
        return None
    data = place.read_bytes()
    try:
        schema = schema_of(data)
    except (DecodeError, RecursionError):
        return None
    return decode_report(data, path) if schema is not None and schema.startswith("kvtune.") else None


def as_stored(report: Report, path: str, today: AnalysisOptions) -> tuple[list[str], AnalysisOptions]:
    """The traces and options of the command that a report names; no trace where that is a self-check.

    Options that decide no number are those of `today`, and so is the trust in templates that requests bring.

    Raises:
        UnusableInputError: the trace came from stdin, the command cannot be read any more, or it trusts templates and
            `today` does not.
    """
    name, values = _stated(report.command, path)
    traces = list(values.get("trace") or ())
    if "-" in traces:
        raise UnusableInputError(
            "the trace came from stdin and cannot be opened again",
            where=path,
            field="trace.files",
            way_out="name the trace instead of the report",
        )
    if not traces and name != "validate":
        raise _unusable(path, "names no trace")
    asked = filled(AnalysisOptions, values)
    if asked.model.trust_request_chat_template and not today.model.trust_request_chat_template:
        raise UnusableInputError(
            "is not taken from a file",
            where=path,
            field="--trust-request-chat-template",
            way_out="give it on the command line",
        )
    of_today = {option: value for option, value, _ in options_of(today.input) if option in DECIDES_NOTHING}
    return traces, replace(asked, input=replace(asked.input, **of_today))


def refuse_typed_options(ctx: typer.Context, path: str) -> None:
    """A report states what was analyzed: options that would have it otherwise would be passed over.

    Raises:
        UnusableInputError: one of them stands on the command line.
    """
    for name, _, _ in options_of(AnalysisOptions()):
        source = ctx.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE" or name in _OF_TODAY:
            continue
        raise UnusableInputError(
            "is for the report to say",
            where=path,
            field=long_name(name),
            way_out="name the trace instead of the report to analyze it otherwise",
        )


def _stated(text: str, path: str) -> tuple[str, dict[str, Any]]:
    """The command's name, and the traces and analysis options that it states: no variable and no file adds to them."""
    from typer.main import get_command

    from kvtune.cli.app import app

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise _unusable(path, f"cannot be split into words: {error}") from None
    name = words[1] if len(words) > 1 else ""
    if name not in ("analyze", "validate"):
        raise _unusable(path, "names no command to repeat")
    command: Any = get_command(app).commands[name]  # type: ignore[attr-defined]
    context = typer.Context(command, info_name=name)
    wanted = {"trace", *(option for option, _, _ in options_of(AnalysisOptions()))}
    try:
        given, _, _ = command.make_parser(context).parse_args(words[2:])
        return name, {
            param.name: param.process_value(context, given[param.name])
            for param in command.params
            if param.name in wanted and param.name in given
        }
    except typer.TyperException as error:
        raise _unusable(path, f"cannot be read any more: {error.format_message()}") from error


def _unusable(path: str, why: str) -> UnusableInputError:
    return UnusableInputError(
        why, where=path, field="command", way_out="name the trace instead of the report"
    )
