"""`kvtune conform`: engine vectors replayed by this build's bookkeeping, and each difference named."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtune.cli.options import Force, JsonTarget, with_options
from kvtune.cli.output import STDOUT, claim_files, write_file, write_stdout
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.small_file import read_small_file

if TYPE_CHECKING:
    from kvtune.cli.documents import Conformance

MOST_SHOWN = 20
MOST_BYTES = 1 << 30

Vectors = Annotated[
    list[str],
    typer.Argument(
        metavar="VECTORS.json", help="What an unmodified engine did, in one of the known formats."
    ),
]


@with_options
def conform(vectors: Vectors, json: JsonTarget = None, force: Force = False) -> None:
    """Replay engine vectors and report each difference: the proof that this build speaks the engine's rules."""
    from kvtune.cli.documents import encode_document

    claim_files([json], force=force, inputs=vectors)
    found = conform_files(vectors)
    if json is not None:
        write_file(json, encode_document(found), force=force)
    if json != STDOUT:
        write_stdout(render_conformance(found))
    if found.differences:
        raise typer.Exit(1)


def conform_files(paths: list[str]) -> Conformance:
    """Compare every file.

    Raises:
        UnusableInputError: a file that cannot be read, or whose format or release is not known.
    """
    from kvtune.analyzers.conform import conform_document
    from kvtune.cli.documents import Conformance, FailedCase, FileDifference, UnknownSetting

    results = [(path, conform_document(_read(path), where=path)) for path in paths]
    return Conformance(
        files=tuple(paths),
        cases=sum(result.cases for _, result in results),
        requests=sum(result.requests for _, result in results),
        differences=tuple(
            FileDifference(
                file=path,
                case=one.case,
                request=one.request,
                field=one.field,
                wanted=one.wanted,
                found=one.found,
            )
            for path, result in results
            for one in result.differences
        ),
        engine_failures=tuple(
            FailedCase(file=path, case=failure.case, request=failure.request, type=failure.type)
            for path, result in results
            for failure in result.engine_failures
        ),
        not_modelled=tuple(
            UnknownSetting(file=path, case=unknown.case, setting=unknown.setting)
            for path, result in results
            for unknown in result.not_modelled
        ),
    )


def _read(path: str) -> object:
    data = read_small_file(Path(path), MOST_BYTES, "a vector file")
    try:
        return json_text.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnusableInputError(f"is not JSON: {error}", where=path) from error


def render_conformance(found: Conformance) -> str:
    """The result for a person: a verdict, then the first differences."""
    from kvtune.cli.reporters.numbers import plural

    what = f"{plural(found.cases, 'case')}, {plural(found.requests, 'request')} in {plural(len(found.files), 'file')}"
    lines = [f"{what}: {plural(len(found.differences), 'difference')}"]
    for one in found.differences[:MOST_SHOWN]:
        request = "" if one.request is None else f", request {one.request}"
        lines.append(
            f"  {one.file}: {one.case}{request}: {one.field}: wanted {one.wanted!r}, found {one.found!r}"
        )
    if len(found.differences) > MOST_SHOWN:
        lines.append(f"  and {len(found.differences) - MOST_SHOWN:,} more; --json FILE lists all")
    if found.engine_failures:
        number = plural(len(found.engine_failures), "case")
        lines.append(f"  in {number} the engine failed with an error of its own; compared up to there:")
        lines += [
            f"    {failure.file}: {failure.case}, request {failure.request}: {failure.type}"
            for failure in found.engine_failures[:MOST_SHOWN]
        ]
    if found.not_modelled:
        settings = sorted({unknown.setting for unknown in found.not_modelled})
        cases = len({(unknown.file, unknown.case) for unknown in found.not_modelled})
        lines.append(f"  not modelled in {plural(cases, 'case')}: {', '.join(settings)}")
    return "\n".join(lines) + "\n"
