"""A program that takes a `vllm serve` line's flags, logs as vLLM does when it starts, and serves the scripted server.

    python -m tests.gpu_probe.live.scripted_program serve MODEL --port N [--prefix-match-unit N]

`--ignore-unit`: starts as asked and does not apply the unit. `--die-at N`: exits at the N-th completion.
`--refuse-unit N`: does not start with that unit. `--forget-unit`: a wrapper that keeps the flag to itself.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace

from aiohttp import web

from tests.gpu_probe.live.scripted_server import CONFIG, Script, ScriptedServer


def log(line: str) -> None:
    """One line, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class DyingServer(ScriptedServer):
    """Exits in the middle of a completion."""

    die_at = -1

    async def complete(self, request: web.Request) -> web.StreamResponse:
        if len(self.sent) == self.die_at:
            log("RuntimeError: out of everything")
            os._exit(3)
        return await super().complete(request)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--prefix-match-unit", type=int)
    parser.add_argument("--enable-prompt-tokens-details", action="store_true")
    parser.add_argument("--ignore-unit", action="store_true")
    parser.add_argument("--forget-unit", action="store_true")
    parser.add_argument("--die-at", type=int, default=-1)
    parser.add_argument("--refuse-unit", type=int)
    given = parser.parse_args()
    unit = None if given.forget_unit else given.prefix_match_unit
    log("INFO 11-30 07:10:12 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='m'")
    if unit is not None and unit == given.refuse_unit:
        sys.exit(f"ValueError: Invalid prefix_match_unit={unit}; block sizes must be divisible by it.")
    log("INFO 11-30 07:10:25 [kv_cache_utils.py:853] kv cache group sizes (64, 64, 64, 64)")
    log("INFO 11-30 07:10:25 [kv_cache_utils.py:854] kv lcm block sizes 64")
    real = None if given.ignore_unit else unit
    server = DyingServer(Script(config=replace(CONFIG, match_unit=real), claimed_unit=unit))
    server.die_at = given.die_at
    web.run_app(server.application(), host=given.host, port=given.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
