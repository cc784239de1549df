"""kvtune.toml: options that a project keeps beside its traces, and the precedence of everything that sets one.

Flag > `KVTUNE_<NAME>` > kvtune.toml > default. Keys are long options without the dashes; relative paths are
relative to the file. One file is read: the one beside the first trace, else the one in the working directory.
Knows the file and its keys; what an option means is its command's business.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from kvtune.cli.help import write_options
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.small_file import read_small_file

FILE_NAME = "kvtune.toml"
ONLY_FLAGS = frozenset({"help", "version", "init", "install-completion", "show-completion"})
"""Options that ask for something once; they make no sense in a file."""
NOT_FROM_FILES = frozenset({"serve", "force", "endpoint", "trust-request-chat-template"})
"""Options that start a program, send prompts away, overwrite files or trust a template: a file that came along with a
downloaded trace must not decide that."""

_MAX_BYTES = 2**20
_PATHS = frozenset({"FILE", "DIR", "PATH", "REPORT.json"})
"""Metavars of options that take a path."""
_Value = str | bool | list[str]


class SettingsCommand(TyperCommand):
    """A command whose options take their defaults from kvtune.toml."""

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        write_options(self.get_params(ctx), ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(
            f"Every option can also be set by a variable (--seed: KVTUNE_SEED) or in {FILE_NAME} beside the trace "
            "or in the working directory."
        )

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        asked_once = {"-h", *("--" + name for name in ONLY_FLAGS)}
        if ctx.resilient_parsing or asked_once.intersection(args):
            return super().parse_args(ctx, args)
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        traces = given.get("trace") or []
        path = find_settings([traces] if isinstance(traces, str) else list(traces))
        if path is not None:
            root = ctx.find_root().command
            commands = root.commands.values() if isinstance(root, TyperGroup) else [self]
            known = {name: param for command in commands for name, param in long_options(command).items()}
            values = load_settings(path, known)
            ctx.default_map = {
                param.name: values[name] for name, param in long_options(self).items() if name in values
            }
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if error.param is None or not error.param.opts[0].startswith("--") or not error.message:
                raise
            raise UnusableInputError(
                error.message.removeprefix("Value error, ").rstrip("."),
                where=_place(ctx, error.param, path),
                field=error.param.opts[0],
            ) from error


def _place(ctx: typer.Context, param: Any, path: Path | None) -> str | None:
    """Where an option's value came from; None for the command line."""
    source = ctx.get_parameter_source(param.name)
    if source is not None and source.name == "DEFAULT_MAP":
        return str(path)
    if source is not None and source.name == "ENVIRONMENT":
        return str(param.envvar)
    return None


def long_options(command: Any) -> dict[str, Any]:
    """The parameters of a typer command by their long name, without the dashes."""
    return {
        name.removeprefix("--"): param
        for param in command.params
        for name in param.opts
        if name.startswith("--")
    }


def find_settings(traces: list[str]) -> Path | None:
    """The kvtune.toml that counts for these traces."""
    folders = [Path(trace).parent for trace in traces[:1] if trace != "-"]
    for folder in [*folders, Path()]:
        path = folder / FILE_NAME
        if path.is_file():
            return path
    return None


def load_settings(path: Path, known: dict[str, Any]) -> dict[str, _Value]:
    """The values of a kvtune.toml by long name, as an environment variable would give them.

    Raises:
        UnusableInputError: not readable, not TOML, a key that is no option, or a value of an unusable type.
    """
    try:
        document = tomllib.loads(read_small_file(path, _MAX_BYTES, "a settings file").decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UnusableInputError(f"cannot be read: {error}", where=str(path)) from error
    values: dict[str, _Value] = {}
    for key, value in document.items():
        if key not in known or key in ONLY_FLAGS:
            raise UnusableInputError(
                "is no option of kvtune", where=str(path), field=key[:80], way_out=_nearest(key, known)
            )
        if key in NOT_FROM_FILES:
            raise UnusableInputError(
                "is not taken from a file", where=str(path), field=key, way_out=f"give it as --{key}"
            )
        given = value if isinstance(value, list) else [value]
        if getattr(known[key], "multiple", False):
            values[key] = [str(_as_given(path, key, one, known[key].metavar or "")) for one in given]
        else:
            values[key] = _as_given(path, key, value, known[key].metavar or "")
    return values


def _nearest(key: str, known: dict[str, Any]) -> str:
    names = sorted(known.keys() - ONLY_FLAGS)
    close = difflib.get_close_matches(key.replace("_", "-"), names, n=1, cutoff=0.0)
    return f"the nearest is `{close[0]}`"


def _as_given(path: Path, key: str, value: object, metavar: str) -> _Value:
    """One value as the command line takes it; lists become comma lists, paths start at the file's folder."""
    if isinstance(value, bool):
        return value
    items = value if isinstance(value, list) else [value]
    if not items or not all(
        isinstance(item, str | int | float) and not isinstance(item, bool) for item in items
    ):
        raise UnusableInputError(
            "has an unusable type",
            where=str(path),
            field=key,
            found=type(value).__name__,
            wanted="a text, a number, true or false, or a list of texts or numbers",
        )
    text = ",".join(str(item) for item in items)
    return _from_folder(path.parent, text, metavar)


def _from_folder(folder: Path, text: str, metavar: str) -> str:
    """`text` seen from the settings file's folder where the option takes a path."""
    kinds = metavar.split("|")
    if not _PATHS.intersection(kinds) or text == "-":
        return text
    joined = folder / text
    may_be_a_name = any(kind not in _PATHS | {"-"} for kind in kinds)
    return text if may_be_a_name and not joined.exists() else str(joined)


def settings_template(command: Any) -> str:
    """A kvtune.toml that names every option of a command, commented out, with its default."""
    lines = [
        "# Settings of kvtune, read when this file lies beside the trace or in the working directory.",
        "# Flags and KVTUNE_* variables come first. Relative paths are relative to this file.",
    ]
    panel = None
    for name, param in long_options(command).items():
        if name in ONLY_FLAGS | NOT_FROM_FILES or param.hidden:
            continue
        if param.rich_help_panel != panel:
            panel = param.rich_help_panel
            lines += ["", f"# ---- {panel} ----"]
        lines += ["", f"# {param.help}", f"# {name} = {_toml_value(param)}"]
    return "\n".join(lines) + "\n"


def _toml_value(param: Any) -> str:
    default = param.default
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, int):
        return str(default)
    return f'"{param.metavar if default is None else default}"'
