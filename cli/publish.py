"""A finished report to wherever the user wants it: terminal, JSON, HTML, Markdown."""

from __future__ import annotations

import sys

from kvtune.analyzers.document import encode_report
from kvtune.analyzers.report import Report
from kvtune.cli.options import OutputOptions
from kvtune.cli.output import STDOUT, has_colour, terminal_width, write_file, write_stdout
from kvtune.cli.reporters.markdown import render_markdown
from kvtune.cli.reporters.terminal import render_terminal


def publish_report(report: Report, output: OutputOptions) -> None:
    """Write every view that was asked for; the terminal's too, unless another one has stdout for itself."""
    if output.json is not None:
        write_file(output.json, encode_report(report), force=output.force)
    if output.md is not None:
        write_file(output.md, render_markdown(report).encode(), force=output.force)
    if output.html is not None:
        from kvtune.cli.reporters.html import render_html

        write_file(output.html, render_html(report).encode(), force=output.force)
    if STDOUT not in (output.json, output.md):
        write_stdout(
            render_terminal(
                report,
                width=terminal_width(sys.stdout),
                colour=has_colour(sys.stdout),
                details=output.details,
            )
        )
