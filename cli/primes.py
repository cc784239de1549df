"""`--write-prime`: common heads as requests of their own, to be sent when a server has started."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvtune.analyzers.levers import Prompts
from kvtune.cli.output import note, write_file
from kvtune.cli.traces import LoadedTrace


def write_primes(path: str, primes: Prompts, loaded: LoadedTrace, *, force: bool, quiet: bool) -> None:
    """One batch line per head, best first: its token ids as a completion of one token.

    Raises:
        UnusableInputError: the file exists and `force` is off, or the system refuses.
    """
    write_file(path, b"".join(_lines(primes, loaded)), force=force)
    if not primes:
        note(f"no common head is worth sending on its own: {path} is empty", quiet=quiet)


def _lines(primes: Prompts, loaded: LoadedTrace) -> Sequence[bytes]:
    lines = []
    for number, (request, ids) in enumerate(primes):
        identity = loaded.identities[int(loaded.trace.namespace[request])]
        # An adapter is addressed by its name in place of the model's.
        body: dict[str, object] = {
            "model": identity.lora or identity.model,
            "prompt": ids.tolist(),
            "max_tokens": 1,
        }
        if identity.cache_salt is not None:
            body["cache_salt"] = identity.cache_salt
        line = {"custom_id": f"prime-{number}", "method": "POST", "url": "/v1/completions", "body": body}
        lines.append(msgspec.json.encode(line) + b"\n")
    return lines
