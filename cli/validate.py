"""`kvtune validate`: the best candidates replayed for real, on the bundled engine or on a vLLM server.

Knows options and where results go; what is run, and how, is for `kvtune.gpu_probe`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvtune.cli.analysis_options import AnalysisOptions
from kvtune.cli.analyze import Analyzed, analyze_traces
from kvtune.cli.options import DetailOptions, GeneralOptions, OutputOptions, with_options
from kvtune.cli.output import claim_files, note
from kvtune.cli.probe import ProbeChoices, device_of, retold, slo_of
from kvtune.cli.reproduce import command_line
from kvtune.cli.stored import as_stored, refuse_typed_options, stored_report
from kvtune.tokenization.errors import UnusableInputError

if TYPE_CHECKING:
    from kvtune.analyzers.validation import Validation
    from kvtune.cli.prepare import Prepared

Subject = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TRACE|REPORT.json]",
        help="A request log, or a report whose trace is opened again; without either, a self-check of this machine "
        "with the bundled sample and model.",
        show_default=False,
    ),
]


_FEW_REQUESTS = 2
"""Of the trace, where steps alone are measured."""


@with_options
def validate(
    ctx: typer.Context,
    trace: Subject = None,
    *,
    probe: ProbeChoices,
    asked: AnalysisOptions,
    output: OutputOptions,
    general: GeneralOptions,
) -> None:
    """Run the best candidates for real: on the bundled engine, or on a vLLM server of yours."""
    from kvtune.cli.measuring import Stopwatch
    from kvtune.cli.publish import publish_report
    from kvtune.gpu_probe.choosing import with_validation

    watch = Stopwatch()
    outputs = [output.json, output.html, output.md]
    claim_files(outputs, force=output.force, inputs=trace or (), never_stdout=asked.input.rejects)
    device, slo = device_of(probe), slo_of(probe.slo)
    if device is not None:
        from kvtune.gpu_probe.engine.devices import open_device

        open_device(device)  # refused before a trace is read
    traces = trace or []
    stored = stored_report(traces[0]) if len(traces) == 1 else None
    if stored is not None:
        refuse_typed_options(ctx, traces[0])
        traces, asked = as_stored(stored, traces[0], asked)
    if device == "cuda" and asked.engine.hardware is None:
        asked = replace(asked, engine=replace(asked.engine, hardware=_this_gpu(quiet=general.quiet)))
    stated, self_check = asked, not traces
    if self_check:
        note("no trace given: a self-check of this machine with the bundled sample", quiet=general.quiet)
        traces, asked = _self_check(asked)
    if probe.serve is not None:
        from kvtune.cli.live import with_served_model

        asked = replace(asked, model=with_served_model(asked.model, probe.serve))

    def command(ready: Prepared) -> str:
        if self_check:  # neither the sample nor its model is named, or it would be a run like any other
            return command_line("validate", (), stated, retold(probe))
        return ready.command_line("validate", retold(probe))

    found = analyze_traces(
        traces,
        asked,
        DetailOptions(),
        command=command,
        general=general,
        force=output.force,
    )
    if stored is not None and found.ready.loaded.info.sha256 != stored.trace.sha256:
        raise UnusableInputError(
            "the trace is not the one that was analyzed",
            where=", ".join(stored.trace.files),
            field="trace.sha256",
            found=found.ready.loaded.info.sha256[:16],
            wanted=stored.trace.sha256[:16],
            way_out="analyze it again",
        )
    report, interrupted = found.report, False
    if device is None:
        from kvtune.cli.live import validate_on_server

        report, validation, interrupted = validate_on_server(found, probe, slo, quiet=general.quiet)
    else:
        if probe.measure_steps:  # a few requests are enough, under a clock that measures
            probe = replace(
                probe,
                clock=probe.clock or "virtual",
                requests=probe.requests or _FEW_REQUESTS,
                runs=probe.runs or 1,
            )
        validation, interrupted = _execute(found, probe, device, slo, general, self_check=self_check)
    publish_report(watch.complete(with_validation(report, validation)), output)
    if interrupted:
        raise typer.Abort
    if not validation.agrees or (asked.input.strict and found.ready.loaded.info.rejected):
        raise typer.Exit(1)


def _this_gpu(*, quiet: bool) -> str | None:
    """This machine's GPU, where its data sheet is known."""
    import torch

    from kvtune.analyzers.hardware import parse_hardware

    name = torch.cuda.get_device_name()
    try:
        parse_hardware(name)
    except UnusableInputError:
        note(
            f"no data sheet of {name[:60]!r}: pass --hardware memory=...,bandwidth=...,bf16=...", quiet=quiet
        )
        return None
    return name


def _self_check(asked: AnalysisOptions) -> tuple[list[str], AnalysisOptions]:
    """The bundled sample with the bundled model."""
    import kvtune

    folder = Path(kvtune.__file__).parent / "samples"
    sample = folder / "airline.jsonl.gz"
    if not sample.is_file():
        raise UnusableInputError(
            "the bundled sample is not installed", where=str(sample), way_out="name a trace and a --model"
        )
    model = asked.model.model or str(folder / "tiny-hybrid")
    return [str(sample)], replace(asked, model=replace(asked.model, model=model))


def _execute(
    found: Analyzed,
    probe: ProbeChoices,
    device: Literal["cpu", "cuda"],
    slo: dict[str, float],
    general: GeneralOptions,
    *,
    self_check: bool,
) -> tuple[Validation, bool]:
    """The validation, and whether it was interrupted."""
    from kvtune.cli.progress import StageProgress
    from kvtune.gpu_probe.choosing import flag_of, units_to_validate

    ready = found.ready
    units = [flag_of(found.report, unit) for unit in units_to_validate(found.report)]
    with StageProgress(quiet=general.quiet) as progress:
        from kvtune.gpu_probe.validate import ProbeOptions, validate_on_engine

        result = validate_on_engine(
            ready.loaded.trace,
            ready.server.config,
            units,
            ProbeOptions(
                device=device,
                clock=probe.clock or ("model" if device == "cpu" else "virtual"),
                model=_model_folder(ready.asked),
                layers=probe.layers,
                runs=probe.runs,
                exact=probe.exact,
                slo=slo,
                arrivals=ready.asked.replay.arrivals,
                outputs=ready.asked.replay.outputs,
                seed=ready.asked.replay.seed,
                step_times=ready.options.step_times,
                priced_by=ready.price.source,
                requests=probe.requests,
                self_check=self_check,
                check=general.debug,
            ),
            progress,
        )
    return result.validation, result.interrupted


def _model_folder(asked: AnalysisOptions) -> Path | None:
    """The folder whose config.json describes the model, where one is known."""
    from kvtune.tokenization.hub import find_model

    if asked.sizes.model_config:
        path = Path(asked.sizes.model_config)
        return path if path.is_dir() else path.parent
    return find_model(asked.model.model) if asked.model.model else None
