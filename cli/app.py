"""The command line as a whole: which commands there are, and the one place where errors become exit codes.

Command modules import what is heavy inside their functions, so that `kvtune --help` answers at once.
"""

from __future__ import annotations

import io
import os
import sys
import traceback

import typer
from typer.main import get_command

from kvtune import __version__
from kvtune.cli import (
    analyze,
    anonymize,
    cache,
    capture,
    compare,
    conform,
    explain,
    formats,
    report,
    resolve,
    tokens,
    validate,
)
from kvtune.cli.help import PlainHelpGroup
from kvtune.cli.options import Version
from kvtune.cli.settings import SettingsCommand
from kvtune.tokenization.errors import KvtuneError

INTERNAL_ERROR = 70
INTERRUPTED = 130

app = typer.Typer(
    name="kvtune",
    cls=PlainHelpGroup,
    rich_markup_mode=None,
    help="Finds the prefix match unit that your own vLLM traffic wants: trace in, recommendation out.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback()
def _root(version: Version = False) -> None:
    """Finds the prefix match unit that your own vLLM traffic wants: trace in, recommendation out."""


_COMMANDS = (
    analyze.analyze,
    validate.validate,
    explain.explain,
    resolve.resolve,
    report.report,
    compare.compare,
    conform.conform,
    anonymize.anonymize,
    capture.capture,
    tokens.tokens,
    formats.formats,
    cache.cache,
)
for _command in _COMMANDS:
    app.command(cls=SettingsCommand)(_command)


def main(arguments: list[str]) -> int:
    """Run one command line and return its exit code; whatever goes wrong is one line on stderr."""
    debug = "--debug" in arguments or os.environ.get("KVTUNE_DEBUG", "") not in ("", "0", "false")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our characters still gets the numbers
    for argument in arguments:
        if not argument.isascii() and argument.encode("utf-8", "replace").decode() != argument:
            return _fail(
                "a name that is not UTF-8 cannot be written into a report; rename it", 2, debug=debug
            )
    try:
        code = get_command(app).main(args=arguments or ["--help"], prog_name="kvtune", standalone_mode=False)
    except KvtuneError as error:
        return _fail(str(error), error.exit_code, debug=debug)
    except typer.TyperException as error:
        return _fail(error.format_message(), KvtuneError.exit_code, debug=debug)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", KvtuneError.exit_code, debug=debug)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:
        what = f"internal error, please report: {type(error).__name__} in kvtune {__version__}"
        return _fail(f"{what}; --debug shows where", INTERNAL_ERROR, debug=debug)
    return code if isinstance(code, int) else 0


def _fail(line: str, code: int, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    sys.stderr.write(f"kvtune: {' '.join(line.split())}\n")
    return code
