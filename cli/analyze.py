"""`kvtune analyze`: trace in, recommendation out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from kvtune import __version__
from kvtune.cli.analysis_options import AnalysisOptions
from kvtune.cli.options import OUTPUT, DetailOptions, GeneralOptions, OutputOptions, option, with_options
from kvtune.cli.output import claim_files, note, terminal_width, write_file, write_stdout
from kvtune.cli.settings import FILE_NAME, settings_template

if TYPE_CHECKING:
    from kvtune.analyzers.levers import Prompts
    from kvtune.analyzers.report import Report
    from kvtune.analyzers.step_times import StepTimes
    from kvtune.analyzers.sweep import Progress
    from kvtune.cli.engine import Server
    from kvtune.cli.prepare import Prepared
    from kvtune.tokenization.trace import UInt32

Traces = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TRACE... [-- vllm serve ...]",
        help="Request logs, merged by timestamp; `-` is stdin, .gz and .zst are told by content. "
        "A serve command behind two dashes says how the server runs.",
        show_default=False,
    ),
]
Init = Annotated[
    bool,
    typer.Option(
        "--init", metavar="", help=f"Write a commented {FILE_NAME} and exit.", rich_help_panel=OUTPUT
    ),
]

CheckTrace = Annotated[
    bool,
    typer.Option(
        "--check-trace",
        metavar="",
        help="Print what the trace holds and what is missing; no replay.",
        rich_help_panel=OUTPUT,
    ),
]

WritePrime = Annotated[
    str | None,
    option(
        "--write-prime",
        "FILE",
        "Common heads worth sending on their own, as requests (with --levers).",
        OUTPUT,
    ),
]


@with_options
def analyze(
    ctx: typer.Context,
    trace: Traces = None,
    *,
    asked: AnalysisOptions,
    output: OutputOptions,
    detail: DetailOptions,
    init: Init = False,
    check_trace: CheckTrace = False,
    write_prime: WritePrime = None,
    general: GeneralOptions,
) -> None:
    """Find the prefix match unit that a trace wants: trace in, recommendation out."""
    if init:
        write_file(FILE_NAME, settings_template(ctx.command).encode(), force=output.force)
        note(f"{FILE_NAME} written: uncomment what you need", quiet=general.quiet)
        return
    from kvtune.cli.engine import split_serve_command

    files, words = split_serve_command(trace or [])
    if not files and asked.sizes.metrics and not check_trace:
        from kvtune.cli.no_trace import answer_without_trace

        claim_files([output.json], force=output.force)
        answer_without_trace(words, asked, output)
        return
    if check_trace and files:
        check(trace or [], asked, output, detail, general)
        return
    if not trace:
        raise typer.BadParameter("name a request log, or `-` for stdin", param_hint="TRACE")
    rejected = run_analysis(trace, asked, output, detail, general, write_prime=write_prime)
    if asked.input.strict and rejected:
        raise typer.Exit(1)


def check(
    traces: list[str],
    asked: AnalysisOptions,
    output: OutputOptions,
    detail: DetailOptions,
    general: GeneralOptions,
) -> None:
    """Read and encode, and print what is there and what is not."""
    import sys

    from kvtune.cli.check_trace import check_lines
    from kvtune.cli.prepare import load_only
    from kvtune.cli.progress import StageProgress
    from kvtune.cli.reporters.layout import Page

    with StageProgress(quiet=general.quiet) as progress:
        loaded = load_only(traces, asked, detail, progress, general=general, force=output.force)
    page = Page(max(terminal_width(sys.stdout), 60), colour=False)
    lines: list[str] = []
    for mark, sentence in check_lines(loaded):
        lines += page.paragraph(sentence, first=f"  {mark:<2}  ", rest=" " * 6)
    write_stdout("\n".join(lines) + "\n")


def run_analysis(
    traces: list[str],
    asked: AnalysisOptions,
    output: OutputOptions,
    detail: DetailOptions,
    general: GeneralOptions,
    *,
    write_prime: str | None = None,
) -> int:
    """Read, encode, replay and publish; gives the number of rejected lines."""
    from kvtune.cli.measuring import Stopwatch
    from kvtune.cli.publish import publish_report

    watch = Stopwatch()
    outputs = [output.json, output.html, output.md, write_prime]
    claim_files(outputs, force=output.force, inputs=traces, never_stdout=asked.input.rejects)
    if write_prime is not None:
        asked = replace(asked, replay=replace(asked.replay, levers=True))
    found = analyze_traces(
        traces,
        asked,
        detail,
        command=lambda ready: ready.command_line("analyze", detail),
        general=general,
        force=output.force,
    )
    if write_prime is not None:
        from kvtune.cli.primes import write_primes

        write_primes(write_prime, found.primes, found.ready.loaded, force=output.force, quiet=general.quiet)
    publish_report(watch.complete(found.report), output)
    return found.ready.loaded.info.rejected


@dataclass(frozen=True)
class Analyzed:
    """What the options come to, and the report on it.

    `analyze_on` makes the report for another server, such as one that has been asked for its sizes, or with other step
    times (`step_times=`). `primes` are the
    prompts that `--levers` found worth sending beforehand.
    """

    ready: Prepared
    report: Report
    analyze_on: Callable[..., Report]
    primes: Prompts = ()


def analyze_traces(
    traces: list[str],
    asked: AnalysisOptions,
    detail: DetailOptions,
    *,
    command: Callable[[Prepared], str],
    general: GeneralOptions,
    force: bool,
) -> Analyzed:
    """Read, encode and replay. The report names the line that `command` gives; its `measured` is for the caller to
    complete."""
    from kvtune.cli.spare_workers import spare_workers

    with ExitStack() as stack:
        stack.enter_context(spare_workers(traces, asked))  # they start while this process imports the rest
        from kvtune.analyzers.levers import LeverInputs, Wording
        from kvtune.analyzers.levers.other_dtypes import other_dtypes
        from kvtune.analyzers.options import Provenance
        from kvtune.analyzers.pipeline import analyze as find_unit
        from kvtune.analyzers.sizing.deployment_findings import unmodelled_flags
        from kvtune.analyzers.sizing.serve_flags import ServeFlags
        from kvtune.analyzers.sweep import no_progress
        from kvtune.cli import hash_costs
        from kvtune.cli.measuring import created_now
        from kvtune.cli.prepare import prepare
        from kvtune.cli.progress import StageProgress
        from kvtune.cli.step_times import hardware_info, keep

        created = created_now()
        primes: list[tuple[int, UInt32]] = []
        progress = stack.enter_context(StageProgress(quiet=general.quiet))
        ready = prepare(traces, asked, detail, progress, general=general, force=force, upgrades=True)
        line = command(ready)
        priced = ready.price.caveats(int(ready.loaded.trace.prompt_tokens.max(initial=0)))

        def analyze_on(
            server: Server, progress: Progress = no_progress, step_times: StepTimes | None = None
        ) -> Report:
            ready.price.check(server.config.groups)
            options = ready.options if step_times is None else replace(ready.options, step_times=step_times)
            if server.size_source in ("startup-log", "metrics") and server is not ready.server:
                options = replace(options, assumed_step_budget=False)  # it was asked
            return find_unit(
                ready.loaded.trace,
                server.config,
                options,
                Provenance(
                    kvtune_version=__version__,
                    command=line,
                    created=created,
                    trace=ready.loaded.info,
                    tokenizer=ready.loaded.tokenizer,
                    size_source=server.size_source,
                    hardware=hardware_info(server),
                    flags=server.sized.flags if server.sized is not None else ServeFlags(),
                    unmodelled=unmodelled_flags(ready.serve.ignored) if ready.serve is not None else (),
                    assumed=(*server.assumed, *priced, *ready.time_notes, *ready.loaded.caveats),
                ),
                progress,
                LeverInputs(
                    Wording(ready.loaded.decode, detail.show_text),
                    other_dtypes(server.sized, server.config) if server.sized is not None else (),
                    primes.extend,
                ),
            )

        report = analyze_on(ready.server, progress)
        keep(ready.options.step_times)
        hash_costs.keep(ready.options.known_costs)
    return Analyzed(ready, report, analyze_on, primes)
