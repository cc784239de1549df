"""`kvtune validate`: the best candidates replayed for real, on the bundled engine or on a vLLM server.

Knows options and where results go; what is run, and how, is for `kvtune.gpu_probe`.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kvtune.cli.analyze import Analyzed, analyze_traces
from kvtune.cli.options import (
    DetailOptions,
    EngineOptions,
    GeneralOptions,
    InputOptions,
    ModelOptions,
    OutputOptions,
    ReplayOptions,
    SizeOptions,
    option,
    with_options,
)
from kvtune.cli.output import claim_files, note
from kvtune.tokenization.errors import UnusableInputError

if TYPE_CHECKING:
    from kvtune.analyzers.report import Report
    from kvtune.analyzers.validation import Validation

PROBE = "Probe"
INTERRUPTED = 130
RUNS_ON_SERVER = 2
"""There and back again: each candidate's server is started twice."""
_MAX_REPORT_BYTES = 1 << 30

Subject = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TRACE|REPORT.json]",
        help="A request log, or a report whose trace is opened again; without either, a self-check of this machine "
        "with the bundled sample and model.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class ProbeChoices:
    """What candidates are run on, and how."""

    gpu: Annotated[bool, option("--gpu", "", "The bundled engine on this machine's GPU.", PROBE)] = False
    device: Annotated[
        Literal["cpu", "cuda"] | None,
        option("--device", "cpu|cuda", "Device of the bundled engine. [cpu]", PROBE),
    ] = None
    serve: Annotated[
        str | None,
        option(
            "--serve", '"vllm serve ..."', "Start this server once per candidate and replay there.", PROBE
        ),
    ] = None
    endpoint: Annotated[
        str | None, option("--endpoint", "URL", "Replay against a vLLM server that is running.", PROBE)
    ] = None
    clock: Annotated[
        Literal["model", "virtual", "wall"] | None,
        option(
            "--clock",
            "model|virtual|wall",
            "Step times by a model (repeatable), or measured, gaps skipped or waited for. [model on cpu, else virtual]",
            PROBE,
        ),
    ] = None
    exact: Annotated[
        bool, option("--exact", "", "Equal bits with and without cache, and the proof of it.", PROBE)
    ] = False
    layers: Annotated[
        int | None,
        option("--layers", "N", "Layers of each kind, at the model's full width.", PROBE, min=1),
    ] = None
    requests: Annotated[
        int | None,
        option("--requests", "N", "Run the first N requests. [as many as a few minutes allow]", PROBE, min=1),
    ] = None
    runs: Annotated[
        int | None,
        option(
            "--runs",
            "N",
            "Runs per candidate. [1 under the model clock, 2 on a server, else 4]",
            PROBE,
            min=1,
        ),
    ] = None
    slo: Annotated[
        str | None,
        option(
            "--slo",
            "ttft=S,tpot=S",
            "Objectives in seconds (ttft, tpot, e2e): requests that meet all of them, and the largest load at which "
            "95 % do.",
            PROBE,
        ),
    ] = None
    as_chat: Annotated[
        bool, option("--as-chat", "", "Send chats to the server, and compare its token ids.", PROBE)
    ] = False
    ready_timeout: Annotated[
        float, option("--ready-timeout", "S", "How long a server may take to load, in seconds.", PROBE, min=1)
    ] = 900
    log_dir: Annotated[
        str | None,
        option("--log-dir", "DIR", "Keep the started servers' logs there. [a temporary folder]", PROBE),
    ] = None
    allow_traffic: Annotated[
        bool, option("--allow-traffic", "", "Go on although others are using the server.", PROBE)
    ] = False


@with_options
def validate(
    trace: Subject = None,
    *,
    probe: ProbeChoices,
    model: ModelOptions,
    sizes: SizeOptions,
    engine: EngineOptions,
    replay: ReplayOptions,
    input: InputOptions,
    output: OutputOptions,
    general: GeneralOptions,
) -> None:
    """Run the best candidates for real: on the bundled engine, or on a vLLM server of yours."""
    from kvtune.cli.measuring import Stopwatch
    from kvtune.cli.publish import publish_report
    from kvtune.gpu_probe.choosing import with_validation

    watch = Stopwatch()
    claim_files([output.json, output.html, output.md, input.rejects], force=output.force, inputs=trace or ())
    device, slo = _device(probe), _slo(probe.slo)
    if device is not None:
        from kvtune.gpu_probe.engine.devices import open_device

        open_device(device)  # refused before a trace is read
    groups = _Groups(model, sizes, engine, replay, input)
    stored = None
    if not trace:
        note("no trace given: a self-check of this machine with the bundled sample", quiet=general.quiet)
        trace, groups = _self_check(groups)
    elif len(trace) == 1 and (stored := _stored_report(trace[0])) is not None:
        trace, groups = _as_stored(stored, trace[0])
    if probe.serve is not None:
        from kvtune.cli.live import with_served_model

        groups = replace(groups, model=with_served_model(groups.model, probe.serve))
    found = analyze_traces(
        "validate",
        trace,
        model=groups.model,
        sizes=groups.sizes,
        engine=groups.engine,
        replay=groups.replay,
        input=groups.input,
        detail=DetailOptions(),
        general=general,
        force=output.force,
    )
    if stored is not None and found.loaded.info.sha256 != stored.trace.sha256:
        raise UnusableInputError(
            "the trace is not the one that was analyzed",
            where=", ".join(stored.trace.files),
            field="trace.sha256",
            found=found.loaded.info.sha256[:16],
            wanted=stored.trace.sha256[:16],
            way_out="analyze it again",
        )
    report, interrupted = found.report, False
    if device is None:
        report, validation, interrupted = _on_server(found, trace, groups, probe, slo, general)
    else:
        validation, interrupted = _execute(found, groups, probe, device, slo, general)
    publish_report(watch.complete(with_validation(report, validation)), output)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if not validation.agrees or (input.strict and found.loaded.info.rejected):
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Groups:
    """The option groups that decide the analysis."""

    model: ModelOptions
    sizes: SizeOptions
    engine: EngineOptions
    replay: ReplayOptions
    input: InputOptions
    self_check: bool = False


def _device(probe: ProbeChoices) -> Literal["cpu", "cuda"] | None:
    """The bundled engine's device; None where a server was named."""
    ways = [
        name
        for name, asked in (
            ("--gpu", probe.gpu),
            ("--device", probe.device is not None),
            ("--serve", probe.serve is not None),
            ("--endpoint", probe.endpoint is not None),
        )
        if asked
    ]
    if len(ways) > 1 and not (probe.gpu and ways == ["--gpu", "--device"] and probe.device == "cuda"):
        raise UnusableInputError("only one of these can be run on", field=", ".join(ways))
    if probe.serve is not None or probe.endpoint is not None:
        return None
    return "cuda" if probe.gpu or probe.device == "cuda" else "cpu"


def _slo(text: str | None) -> dict[str, float]:
    """The value of --slo, in seconds by figure.

    Raises:
        UnusableInputError: an entry that is none.
    """
    objectives: dict[str, float] = {}
    for entry in text.split(",") if text else ():
        name, _, value = entry.partition("=")
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if name.strip() not in ("ttft", "tpot", "e2e") or not 0 < seconds < 1e9:
            raise UnusableInputError(
                "is no objective",
                field="--slo",
                found=repr(entry[:40]),
                wanted="for instance ttft=0.5,tpot=0.05",
            )
        objectives[name.strip()] = seconds
    return objectives


def _self_check(groups: _Groups) -> tuple[list[str], _Groups]:
    """The bundled sample with the bundled model."""
    import kvtune

    folder = Path(kvtune.__file__).parent / "samples"
    sample = folder / "airline.jsonl.gz"
    if not sample.is_file():
        raise UnusableInputError(
            "the bundled sample is not installed", where=str(sample), way_out="name a trace and a --model"
        )
    return [str(sample)], _Groups(
        replace(groups.model, model=groups.model.model or str(folder / "tiny-hybrid")),
        groups.sizes,
        groups.engine,
        groups.replay,
        groups.input,
        self_check=True,
    )


def _stored_report(path: str) -> Report | None:
    """The report in a file; None for anything else."""
    from kvtune.analyzers.report import decode_report

    place = Path(path)
    if place.suffix != ".json" or not place.is_file() or place.stat().st_size > _MAX_REPORT_BYTES:
        return None
    data = place.read_bytes()
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not str(document.get("schema", "")).startswith("kvtune."):
        return None
    return decode_report(data, path)


def _as_stored(report: Report, path: str) -> tuple[list[str], _Groups]:
    """The traces and options of the command that a report names.

    Raises:
        UnusableInputError: it came from stdin, or the command cannot be read any more.
    """
    from typer.core import TyperCommand
    from typer.main import get_command

    from kvtune.cli.app import app

    words = shlex.split(report.command)
    command: Any = get_command(app).commands.get(words[1]) if len(words) > 1 else None  # type: ignore[attr-defined]
    if command is None or words[1] not in ("analyze", "validate"):
        raise UnusableInputError("names no command to repeat", where=path, field="command")
    context = typer.Context(command, info_name=words[1])
    TyperCommand.parse_args(command, context, words[2:])  # as stated, without a kvtune.toml of today
    values: dict[str, Any] = context.params
    traces = list(values.get("trace") or ())
    if "-" in traces or not traces:
        raise UnusableInputError(
            "the trace came from stdin and cannot be opened again",
            where=path,
            field="trace.files",
            way_out="name the trace instead of the report",
        )

    def group(kind: type[Any]) -> Any:
        return kind(**{item.name: values[item.name] for item in fields(kind)})

    return traces, _Groups(
        *map(group, (ModelOptions, SizeOptions, EngineOptions, ReplayOptions, InputOptions))
    )


def _execute(
    found: Analyzed,
    groups: _Groups,
    probe: ProbeChoices,
    device: Literal["cpu", "cuda"],
    slo: dict[str, float],
    general: GeneralOptions,
) -> tuple[Validation, bool]:
    """The validation, and whether it was interrupted."""
    from kvtune.cli.progress import StageProgress
    from kvtune.gpu_probe.choosing import flag_of, units_to_validate

    units = [flag_of(found.report, unit) for unit in units_to_validate(found.report)]
    with StageProgress(quiet=general.quiet) as progress:
        from kvtune.gpu_probe.validate import ProbeOptions, validate_on_engine

        result = validate_on_engine(
            found.loaded.trace,
            found.server.config,
            units,
            ProbeOptions(
                device=device,
                clock=probe.clock or ("model" if device == "cpu" else "virtual"),
                model=_model_folder(groups),
                layers=probe.layers,
                runs=probe.runs,
                exact=probe.exact,
                slo=slo,
                arrivals=groups.replay.arrivals,
                outputs=groups.replay.outputs,
                seed=groups.replay.seed,
                cost=found.price.model,
                priced_by=found.price.source,
                requests=probe.requests,
                self_check=groups.self_check,
                check=general.debug,
            ),
            progress,
        )
    return result.validation, result.interrupted


def _on_server(
    found: Analyzed,
    traces: list[str],
    groups: _Groups,
    probe: ProbeChoices,
    slo: dict[str, float],
    general: GeneralOptions,
) -> tuple[Report, Validation, bool]:
    """The report for the sizes that the server resolved, the validation, and whether it was interrupted."""
    from kvtune.cli.live import ServerChoices, validate_on_server

    return validate_on_server(
        found,
        traces,
        ServerChoices(
            serve=probe.serve,
            endpoint=probe.endpoint,
            runs=probe.runs or RUNS_ON_SERVER,
            requests=probe.requests,
            as_chat=probe.as_chat,
            slo=slo,
            ready_timeout_s=probe.ready_timeout,
            log_dir=probe.log_dir,
            allow_traffic=probe.allow_traffic,
        ),
        groups.model,
        groups.sizes,
        groups.engine,
        groups.replay,
        groups.input,
        quiet=general.quiet,
    )


def _model_folder(groups: _Groups) -> Path | None:
    """The folder whose config.json describes the model, where one is known."""
    from kvtune.tokenization.hub import find_model

    if groups.sizes.model_config:
        path = Path(groups.sizes.model_config)
        return path if path.is_dir() else path.parent
    return find_model(groups.model.model) if groups.model.model else None
