"""`kvtune report`: a stored report again, on the terminal or as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtune.cli.options import OutputOptions, with_options
from kvtune.cli.output import claim_files
from kvtune.tokenization.small_file import read_small_file

if TYPE_CHECKING:
    from kvtune.analyzers.report import Report

MAX_REPORT_BYTES = 1 << 30

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
        UnusableInputError: too large, or not a report of this schema.
    """
    from kvtune.analyzers.document import decode_report

    return decode_report(read_small_file(Path(path), MAX_REPORT_BYTES, "a report"), path)
