"""A stored report whose trace is opened again: whether a file is one, and what its command asked for.

Knows the report and its command.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kvtune.cli.analysis_options import AnalysisOptions
from kvtune.cli.options import filled
from kvtune.tokenization.errors import UnusableInputError

if TYPE_CHECKING:
    from kvtune.analyzers.report import Report

_MAX_REPORT_BYTES = 1 << 30


def stored_report(path: str) -> Report | None:
    """The report in a file; None for anything else."""
    from kvtune.analyzers.report import decode_report

    place = Path(path)
    if place.suffix != ".json" or not place.is_file() or place.stat().st_size > _MAX_REPORT_BYTES:
        return None
    data = place.read_bytes()
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not str(document.get("schema", "")).startswith("kvtune."):
        return None
    return decode_report(data, path)


def as_stored(report: Report, path: str) -> tuple[list[str], AnalysisOptions]:
    """The traces and options of the command that a report names.

    Raises:
        UnusableInputError: it came from stdin, or the command cannot be read any more.
    """
    from typer.core import TyperCommand
    from typer.main import get_command

    from kvtune.cli.app import app

    words = shlex.split(report.command)
    command: Any = get_command(app).commands.get(words[1]) if len(words) > 1 else None  # type: ignore[attr-defined]
    if command is None or words[1] not in ("analyze", "validate"):
        raise UnusableInputError("names no command to repeat", where=path, field="command")
    context = typer.Context(command, info_name=words[1])
    TyperCommand.parse_args(command, context, words[2:])  # as stated, without a kvtune.toml of today
    values: dict[str, Any] = context.params
    traces = list(values.get("trace") or ())
    if "-" in traces or not traces:
        raise UnusableInputError(
            "the trace came from stdin and cannot be opened again",
            where=path,
            field="trace.files",
            way_out="name the trace instead of the report",
        )
    return traces, filled(AnalysisOptions, values)
