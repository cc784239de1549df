"""`kvtune report`: a stored report again, on the terminal or as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtune.cli.options import OutputOptions, with_options
from kvtune.cli.output import claim_files

if TYPE_CHECKING:
    from kvtune.analyzers.report import Report

ReportFile = Annotated[str, typer.Argument(metavar="REPORT.json", help="What `analyze --json` wrote.")]


@with_options
def report(report: ReportFile, output: OutputOptions) -> None:
    """Show a stored report again: terminal, --html, --md."""
    from kvtune.cli.publish import publish_report

    claim_files([output.json, output.html, output.md], force=output.force, inputs=[report])
    publish_report(read_report(report), output)


def read_report(path: str) -> Report:
    """The report in a file.

    Raises:
        UnusableInputError: not readable, or not a report of this schema.
    """
    from kvtune.analyzers.report import decode_report

    return decode_report(Path(path).read_bytes(), path)
