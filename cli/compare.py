"""`kvtune compare`: two stored reports side by side, and a gate for continuous integration."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kvtune.cli.options import OUTPUT, Force, JsonTarget, option, with_options
from kvtune.cli.output import STDOUT, claim_files, has_colour, note, terminal_width, write_file, write_stdout

FailIfWorse = Annotated[
    float | None,
    option(
        "--fail-if-worse",
        "PCT",
        "Exit with 1 when more than PCT per cent of the base's token hit rate is lost.",
        OUTPUT,
        min=0,
    ),
]


@with_options
def compare(
    base: Annotated[str, typer.Argument(metavar="BASE.json", help="What was before.")],
    new: Annotated[str, typer.Argument(metavar="NEW.json", help="What is to be judged.")],
    fail_if_worse: FailIfWorse = None,
    json: JsonTarget = None,
    force: Force = False,
) -> None:
    """Set two reports side by side: two traces, releases or settings."""
    from kvtune.analyzers.compare import compare_reports
    from kvtune.cli.documents import encode_document
    from kvtune.cli.report import read_report
    from kvtune.cli.reporters.comparison import render_comparison

    claim_files([json], force=force, inputs=[base, new])
    found = compare_reports(read_report(base), read_report(new))
    if json is not None:
        write_file(json, encode_document(found), force=force)
    if json != STDOUT:
        write_stdout(
            render_comparison(found, width=terminal_width(sys.stdout), colour=has_colour(sys.stdout))
        )
    if fail_if_worse is not None and found.worse_fraction * 100 > fail_if_worse:
        note(
            f"worse: {found.worse_fraction:.2%} of the token hit rate is lost, {fail_if_worse:g}% are allowed"
        )
        raise typer.Exit(1)
