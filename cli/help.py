"""Help as plain text: usage, what it does, then the options by group, each name whole.

Knows typer's commands and parameters; nothing of what they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

_LAST = "Output"


class PlainHelpGroup(TyperGroup):
    """The root command with its list of commands."""

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(self.commands[name])) for name in self.list_commands(ctx)])
        write_options(self.get_params(ctx), ctx, formatter)


def _summary(command: Any) -> str:
    """The first sentence or paragraph of a command's help."""
    first: str = (command.help or "").strip().split("\n\n")[0]
    return " ".join(first.split())


def write_options(params: Sequence[Any], ctx: typer.Context, formatter: Any) -> None:
    """Arguments, then the options by their group; those without one come first, output last."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for param in params:
        if param.hidden:
            continue
        title = "Arguments" if param.param_type_name == "argument" else param.rich_help_panel or _LAST
        sections.setdefault(title, []).append((_name(param, ctx), _help(param)))
    for title in sorted(sections, key=lambda title: (title != "Arguments", title == _LAST)):
        with formatter.section(title if len(sections) > 1 else "Options"):
            formatter.write_dl(sections[title], col_max=28)


def _name(param: Any, ctx: typer.Context) -> str:
    if param.param_type_name == "argument":
        name: str = param.metavar or param.name
        return name
    if param.metavar == "" or getattr(param, "is_flag", False):
        value = ""
    else:
        value = param.metavar or param.display_type(ctx).strip("<>")
    return f"{', '.join(sorted(param.opts, key=len))} {value}".rstrip()


def _help(param: Any) -> str:
    default = param.default
    if param.param_type_name == "argument" or default is None or default is False:
        return param.help or ""
    return f"{param.help} [{default}]"
