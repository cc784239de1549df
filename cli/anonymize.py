"""`kvtune anonymize`: a trace with its prefix structure and no content, to be shared or kept."""

from __future__ import annotations

import gzip
from typing import Annotated

import typer

from kvtune.cli.analysis_options import InputOptions, ModelOptions
from kvtune.cli.options import OUTPUT, Force, GeneralOptions, option, with_options
from kvtune.cli.output import STDOUT, claim_files, note, writing

Traces = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE",
        help="Request logs, merged by timestamp; `-` is stdin, .gz and .zst are told by content.",
        show_default=False,
    ),
]
Target = Annotated[
    str,
    option("--output", "FILE|-", "Where the anonymous trace goes; .gz is compressed.", OUTPUT, short="-o"),
]


@with_options
def anonymize(
    trace: Traces,
    output: Target,
    *,
    model: ModelOptions,
    input: InputOptions,
    force: Force = False,
    general: GeneralOptions,
) -> None:
    """Write a trace with its prefix structure and no content: ids name who had a prefix first, times start at zero.

    Answers keep their length only. What was shared before is shared after, to the token.
    """
    from kvtune.analyzers.anonymous import anonymous_lines
    from kvtune.cli.progress import StageProgress
    from kvtune.cli.reporters.numbers import plural
    from kvtune.cli.traces import Encoding, load_trace

    claim_files([output], force=force, inputs=trace, never_stdout=input.rejects)
    with StageProgress(quiet=general.quiet) as progress:
        loaded = load_trace(trace, input, model, Encoding(), progress, force=force, quiet=general.quiet)
    with writing(output, force=force) as file:
        # No name and no time in the header: the same trace gives the same bytes.
        target = (
            gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) if output.endswith(".gz") else file
        )
        for line in anonymous_lines(loaded.trace):
            target.write(line + b"\n")
        if target is not file:
            target.close()
    place = "stdout" if output == STDOUT else output
    note(f"{place}: {plural(len(loaded.trace), 'request')}", quiet=general.quiet)
    if input.strict and loaded.info.rejected:
        raise typer.Exit(1)
