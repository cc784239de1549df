"""`kvtune tokens`: a trace as token ids in Parquet or Arrow files, for analyses of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from kvtune.cli.analysis_options import InputOptions, ModelOptions
from kvtune.cli.options import OUTPUT, Force, GeneralOptions, option, with_options
from kvtune.cli.output import note, writing

Traces = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE",
        help="Request logs, merged by timestamp; `-` is stdin, .gz and .zst are told by content.",
        show_default=False,
    ),
]
Target = Annotated[
    str, option("--output", "DIR", "The folder that takes the files; it is made.", OUTPUT, short="-o")
]
As = Annotated[
    Literal["parquet", "arrow"], option("--as", None, "What the files are: Parquet, or Arrow IPC.", OUTPUT)
]


@with_options
def tokens(
    trace: Traces,
    output: Target,
    *,
    form: As = "parquet",
    model: ModelOptions,
    input: InputOptions,
    force: Force = False,
    general: GeneralOptions,
) -> None:
    """Write a trace as token ids: a row a request, as the server's engine would see it."""
    from kvtune.cli.progress import StageProgress
    from kvtune.cli.reporters.numbers import plural
    from kvtune.cli.traces import Encoding, load_trace
    from kvtune.tokenization.errors import UnusableInputError
    from kvtune.tokenization.token_files import file_spans, require_pyarrow, write_requests

    require_pyarrow()
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise UnusableInputError("is no folder", where=output, wanted="a folder, or a name that is free")
    if folder.is_dir() and any(folder.glob("part-*")) and not force:
        raise UnusableInputError(
            "holds part files already", where=output, way_out="add --force to replace them"
        )
    with StageProgress(quiet=general.quiet) as progress:
        loaded = load_trace(trace, input, model, Encoding(), progress, force=force, quiet=general.quiet)
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("part-*"):
            old.unlink()
        spans = list(file_spans(loaded.trace.offsets))
        for number, (first, end) in enumerate(spans):
            with writing(str(folder / f"part-{number:05}.{form}"), force=force) as file:
                write_requests(file, loaded.trace, first, end, form)
            progress("writing", number + 1, len(spans))
    note(
        f"{output}: {plural(len(loaded.trace), 'request')} in {plural(len(spans), 'file')}",
        quiet=general.quiet,
    )
    if input.strict and loaded.info.rejected:
        raise typer.Exit(1)
