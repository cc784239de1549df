"""The command line that gives the same report again, whatever variables and files were in force.

Names only what decides the numbers: not where they go, nor how fast they are made.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from kvtune.cli.options import long_name, options_of

DECIDES_NOTHING = frozenset({"rejects", "strict", "workers", "ready_timeout", "log_dir", "allow_traffic"})
"""Options that no number depends on."""


def command_line(command: str, traces: Sequence[str], *groups: Any, serve: Sequence[str] = ()) -> str:
    """`kvtune COMMAND TRACE... --option value ... -- vllm serve ...` with every option that is not at its default."""
    words = ["kvtune", command, *traces]
    for group in groups:
        for name, value, default in options_of(group):
            if name in DECIDES_NOTHING or value == default:
                continue
            for one in value if isinstance(value, list) else [value]:
                words.append(long_name(name))
                words += [] if one is True else [str(one)]
    return shlex.join([*words, "--", *serve] if serve else words)
