"""`kvtune explain`: one request, with whom it shares most, where they part, where it could resume and why not later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvtune import __version__
from kvtune.cli.analysis_options import AnalysisOptions
from kvtune.cli.options import OUTPUT, DetailOptions, Force, GeneralOptions, JsonTarget, option, with_options
from kvtune.cli.output import STDOUT, claim_files, write_file, write_stdout
from kvtune.tokenization.errors import UnusableInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

Traces = Annotated[list[str], typer.Argument(metavar="TRACE", help="The request log, as `analyze` takes it.")]
RequestId = Annotated[
    str,
    option("--request", "ID", "The request: its id, or its number in replay order such as 12.", OUTPUT),
]

_NEAR = 3


@with_options
def explain(
    trace: Traces,
    *,
    request: RequestId,
    asked: AnalysisOptions,
    detail: DetailOptions,
    json: JsonTarget = None,
    force: Force = False,
    general: GeneralOptions,
) -> None:
    """Tell one request's story: whom it shares most with, where it could resume, and why not later."""
    from kvtune.analyzers.explain import explain_request
    from kvtune.cli.documents import encode_document
    from kvtune.cli.prepare import prepare
    from kvtune.cli.progress import StageProgress
    from kvtune.cli.reporters.explanation import render_explanation

    claim_files([json], force=force, inputs=trace, never_stdout=asked.input.rejects)
    with StageProgress(quiet=general.quiet) as progress:
        ready = prepare(trace, asked, detail, progress, general=general, force=force)
        found = explain_request(
            ready.loaded.trace,
            ready.server.config,
            ready.options,
            number_of(request, ready.loaded.trace.ids),
            kvtune_version=__version__,
            decode=ready.loaded.decode,
            show_text=detail.show_text,
        )
    if json is not None:
        write_file(json, encode_document(found), force=force)
    if json != STDOUT:
        write_stdout(render_explanation(found))


def number_of(request: str, ids: Sequence[str]) -> int:
    """The place (from 0) of the request with this id, or with this number (from 1) where no id reads so.

    Raises:
        UnusableInputError: there is no such request.
    """
    if request in ids:
        return list(ids).index(request)
    if request.isascii() and request.isdigit() and 1 <= int(request) <= len(ids):
        return int(request) - 1
    import difflib

    near = difflib.get_close_matches(request, ids[:100_000], n=_NEAR)
    raise UnusableInputError(
        "no such request in the trace",
        field="--request",
        found=repr(request[:60]),
        wanted=f"an id of the trace{', such as ' + ', '.join(near) if near else ''}, or 1 to {len(ids)}",
    )
