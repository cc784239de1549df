"""From a command's options to what an analysis needs: the trace as ids, the server, and what was asked.

Every command that works on a trace starts here. Knows options; no figure is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from kvtune.analyzers.options import AnalyzeOptions
from kvtune.analyzers.profiles import nearest_profile
from kvtune.analyzers.sizing.releases import parse_release
from kvtune.analyzers.sizing.serve_command import ServeCommand, parse_serve_command
from kvtune.analyzers.step_times.choice import ChosenStepTimes
from kvtune.cli import hash_costs
from kvtune.cli.analysis_options import AnalysisOptions
from kvtune.cli.engine import (
    Server,
    duration_of,
    loads_of,
    serve_flags,
    server_of,
    split_serve_command,
    units_of,
)
from kvtune.cli.options import DetailOptions, GeneralOptions
from kvtune.cli.output import note
from kvtune.cli.progress import StageProgress
from kvtune.cli.reproduce import command_line
from kvtune.cli.spare_workers import processes
from kvtune.cli.step_price import StepPrice, step_price
from kvtune.cli.step_times import step_times_of
from kvtune.cli.traces import Encoding, LoadedTrace, load_trace
from kvtune.tokenization.errors import UnusableInputError


@dataclass(frozen=True)
class Prepared:
    """What the options come to: `files` without a serve command and `asked` with its model, `price` of a step, and what
    step times were not to be had."""

    files: list[str]
    asked: AnalysisOptions
    serve: ServeCommand | None
    loaded: LoadedTrace
    server: Server
    options: AnalyzeOptions
    price: StepPrice
    time_notes: tuple[str, ...] = ()

    def command_line(self, command: str, *groups: Any) -> str:
        """The line that asks for this again; `groups` are the command's option groups beside `asked`."""
        words = self.serve.words if self.serve is not None else ()
        return command_line(command, self.files, self.asked, *groups, serve=words)


def prepare(
    traces: list[str],
    asked: AnalysisOptions,
    detail: DetailOptions,
    progress: StageProgress,
    *,
    general: GeneralOptions,
    force: bool,
    upgrades: bool = False,
) -> Prepared:
    """Read and encode the trace, and size the server; `upgrades` as for `server_of`.

    Raises:
        UnusableInputError: an option, a file, or sizes that nothing gives.
        NoUsableRequestError: nothing is left of the trace.
    """
    files, serve, asked = _with_serve_command(traces, asked)
    if serve is not None and serve.ignored:
        note(f"passed over in the serve command: {', '.join(serve.ignored)}", quiet=general.quiet)
    model, sizes, engine, replay = asked.model, asked.sizes, asked.engine, asked.replay
    if replay.route != "sticky" and replay.replicas == 1:
        raise UnusableInputError("chooses among --replicas", field="--route", wanted="--replicas N beside it")
    price = step_price(replay.step_cost_tokens, replay.step_times)
    stated = model.model or any(getattr(sizes, item.name) for item in fields(sizes))
    server = server_of(engine, sizes, model.model, serve, upgrades=upgrades) if stated else None
    options = AnalyzeOptions(
        units=units_of(replay.units),
        arrivals=replay.arrivals,
        outputs=replay.outputs,
        step_cost_tokens=price.tokens,
        step_times=price.times,
        objective=replay.objective,
        gpu_hour_price=replay.gpu_hour_price,
        bin_width=detail.bin_width,
        window_s=duration_of(replay.window),
        capacity_curve=replay.capacity_curve,
        levers=replay.levers is True,
        culprits=replay.levers is None,
        loads=loads_of(replay.load),
        per_request=detail.per_request,
        replicas=replay.replicas,
        route=replay.route,
        seed=replay.seed,
        workers=processes(asked),
        check_integrity=general.debug,
        known_costs=hash_costs.recall(),
    )
    encoding = _encoding(asked, detail, serve, server)
    loaded = load_trace(files, asked.input, model, encoding, progress, force=force, quiet=general.quiet)
    if server is None:  # the model that the trace names gives the sizes, too
        server = server_of(
            engine, sizes, str(loaded.model) if loaded.model else None, serve, upgrades=upgrades
        )
    price.check(server.config.groups)
    options = replace(
        options, assumed_step_budget=_assumes_step_budget(server), upgraded_from=server.upgraded_from
    )
    chosen = step_times_of(server.sized) if server.sized is not None else ChosenStepTimes(None)
    if price.fitted is None and chosen.times is not None:
        options = replace(options, step_times=chosen.times)
    return Prepared(files, asked, serve, loaded, server, options, price, chosen.notes)


def load_only(
    traces: list[str],
    asked: AnalysisOptions,
    detail: DetailOptions,
    progress: StageProgress,
    *,
    general: GeneralOptions,
    force: bool,
) -> LoadedTrace:
    """The trace as `prepare` reads it, for no server.

    Raises: as `load_trace`.
    """
    files, serve, asked = _with_serve_command(traces, asked)
    encoding = _encoding(asked, detail, serve, None)
    return load_trace(files, asked.input, asked.model, encoding, progress, force=force, quiet=general.quiet)


def _with_serve_command(
    traces: list[str], asked: AnalysisOptions
) -> tuple[list[str], ServeCommand | None, AnalysisOptions]:
    """The files, the serve command among the arguments, and the options with the model that it serves."""
    files, words = split_serve_command(traces)
    if not words:
        return files, None, asked
    serve = parse_serve_command(words, serve_flags(asked.engine))
    return files, serve, replace(asked, model=replace(asked.model, model=asked.model.model or serve.model))


def _encoding(
    asked: AnalysisOptions, detail: DetailOptions, serve: ServeCommand | None, server: Server | None
) -> Encoding:
    version = server.config.version if server else asked.engine.engine_version
    return Encoding(
        version=version,
        lora_paths=nearest_profile(parse_release(version)).lora_key_has_path,
        outputs=asked.replay.outputs == "recorded" or asked.replay.levers is True,
        show_text=detail.show_text,
        by_field=asked.replay.by_field,
        seed=asked.replay.seed,
        max_model_len=server.config.max_model_len if server else asked.engine.max_model_len,
        template_kwargs=serve.template_kwargs if serve is not None else {},
        excludes_tools=serve is not None and serve.excludes_tools,
    )


def _assumes_step_budget(server: Server) -> bool:
    return server.sized is not None and server.sized.flags.max_num_batched_tokens is None
