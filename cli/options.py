"""How options are declared, and those of every command: where results go, how much is said.

An option group is a frozen dataclass whose fields are options, or option groups in turn. `with_options` turns a
function that takes groups into one that typer understands, so that a command reads

    @with_options
    def explain(trace: Traces, *, asked: AnalysisOptions, json: JsonTarget = None) -> None: ...

Every option can also be set by `KVTUNE_<NAME>` and by its long name in kvtune.toml (`kvtune.cli.settings`).
Knows names, defaults and help. What decides an analysis is declared in `kvtune.cli.analysis_options`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from kvtune import __version__
from kvtune.tokenization import cache

_Group = TypeVar("_Group")


_LARGEST = (1 << 31) - 1


def option(
    name: str, metavar: str | None, help: str, panel: str, *, short: str | None = None, **extra: Any
) -> Any:
    """A typer option with its environment variable; without a metavar its choices are shown.

    What has a least number has a largest one, too: what is counted fits 32 bits.
    """
    if "min" in extra:
        extra.setdefault("max", _LARGEST)
    return typer.Option(
        *([name, short] if short else [name]),
        metavar=metavar,
        help=help,
        envvar="KVTUNE_" + name.lstrip("-").upper().replace("-", "_"),
        show_envvar=False,
        rich_help_panel=panel,
        **extra,
    )


def long_name(name: str) -> str:
    """An option as it is typed: `--max-num-seqs` for `max_num_seqs`."""
    return "--" + name.replace("_", "-")


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"kvtune {__version__}")
        raise typer.Exit


OUTPUT = "Output"

Version = Annotated[
    bool,
    typer.Option(
        "--version",
        metavar="",
        help="Show the version and exit.",
        is_eager=True,
        callback=_show_version,
        rich_help_panel=OUTPUT,
    ),
]

JsonTarget = Annotated[
    str | None, option("--json", "FILE|-", "The report as JSON; `-` is stdout, alone.", OUTPUT)
]
Force = Annotated[bool, option("--force", "", "Overwrite files that exist.", OUTPUT)]


@dataclass(frozen=True)
class GeneralOptions:
    """What every command takes. The error edge (`kvtune.cli.app`) reads `--debug` itself."""

    version: Version = False
    quiet: Annotated[bool, option("--quiet", "", "No progress and no warnings.", OUTPUT)] = False
    debug: Annotated[
        bool, option("--debug", "", "Check the bookkeeping's invariants; show tracebacks.", OUTPUT)
    ] = False
    cache_dir: Annotated[
        str | None,
        option("--cache-dir", "DIR", "Cache for vocabularies and measurements. [~/.cache/kvtune]", OUTPUT),
    ] = None


@dataclass(frozen=True)
class OutputOptions:
    """Where reports go. Without any: the terminal report on stdout."""

    json: JsonTarget = None
    html: Annotated[str | None, option("--html", "FILE", "The report as one HTML file.", OUTPUT)] = None
    md: Annotated[str | None, option("--md", "FILE|-", "The report as Markdown.", OUTPUT)] = None
    details: Annotated[
        bool, option("--details", "", "All tables on the terminal, not the answer alone.", OUTPUT)
    ] = False
    force: Force = False


@dataclass(frozen=True)
class DetailOptions:
    """What else goes into the report."""

    per_request: Annotated[
        bool, option("--per-request", "", "Add a row per request to the JSON.", OUTPUT)
    ] = False
    show_text: Annotated[bool, option("--show-text", "", "Show decoded text around divergences.", OUTPUT)] = (
        False
    )
    bin_width: Annotated[
        int | None, option("--bin-width", "N", "Bin of the histogram, in tokens.", OUTPUT, min=1)
    ] = None


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """`function` with each parameter that is an option group replaced by the group's options, in their order.

    Every command takes `GeneralOptions`; those that ask for them by a parameter `general` are given them.
    """
    hints = get_type_hints(function, include_extras=True)
    asked = dict(inspect.signature(function).parameters)
    wants_general = "general" in asked
    if not wants_general:
        asked["general"] = inspect.Parameter("general", inspect.Parameter.KEYWORD_ONLY)
        hints["general"] = GeneralOptions
    groups = {name: hints[name] for name in asked if is_dataclass(hints[name])}
    parameters: list[inspect.Parameter] = []
    for name, parameter in asked.items():
        if name in groups:
            parameters.extend(_parameters(groups[name]))
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(function)
    def command(**values: Any) -> None:
        own = {name: values[name] for name in asked if name not in groups}
        grouped = {name: filled(group, values) for name, group in groups.items()}
        cache_dir = grouped["general"].cache_dir
        cache.use_folder(Path(cache_dir) if cache_dir else None)
        if not wants_general:
            del grouped["general"]
        function(**own, **grouped)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    return command


def _parameters(group: type[Any]) -> Iterator[inspect.Parameter]:
    """A parameter for each option of a group, those of the groups in it at their place."""
    hints = get_type_hints(group, include_extras=True)
    for item in fields(group):
        if is_dataclass(hints[item.name]):
            yield from _parameters(hints[item.name])
        else:
            yield inspect.Parameter(
                item.name, inspect.Parameter.KEYWORD_ONLY, default=item.default, annotation=hints[item.name]
            )


def filled(group: type[_Group], values: Mapping[str, Any]) -> _Group:
    """An option group with these values by option name; options that are not among them are at their defaults."""
    hints = get_type_hints(group)
    return group(
        **{
            item.name: filled(hints[item.name], values)
            if is_dataclass(hints[item.name])
            else values.get(item.name, item.default)
            for item in fields(group)  # type: ignore[arg-type]
        }
    )


def options_of(group: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, value and default of every option of a filled group, those of the groups in it at their place."""
    for item in fields(group):
        value = getattr(group, item.name)
        if is_dataclass(value):
            yield from options_of(value)
        else:
            yield item.name, value, item.default
