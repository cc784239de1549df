"""A cache that is empty and ours alone: nobody else is served, and nothing from before can be hit.

Status codes are not believed: the canary is sent again.
"""

from __future__ import annotations

import asyncio
import os

from kvtune.gpu_probe.live.canary import Canary, Probe
from kvtune.gpu_probe.live.client import LiveClient
from kvtune.gpu_probe.live.counters import Release
from kvtune.gpu_probe.live.facts import read_page
from kvtune.gpu_probe.live.options import Listener, LiveOptions
from kvtune.tokenization.errors import MissingDependencyError

RESET = "/reset_prefix_cache"
QUIET_S = 1.0
"""How long the server is watched for requests that are not ours."""


async def check_quiet(client: LiveClient, release: Release, options: LiveOptions, listener: Listener) -> None:
    """Watch the server for a moment.

    Raises:
        MissingDependencyError: it serves others, and `allow_traffic` is not set.
    """
    first = await read_page(client, release)
    await asyncio.sleep(QUIET_S)
    second = await read_page(client, release)
    moved = second.since(first)
    if not (second.busy or first.busy or moved.requests or moved.prompt_tokens or moved.generation_tokens):
        return
    text = f"{second.running} requests running, {second.waiting} waiting, {moved.requests} finished meanwhile"
    if options.allow_traffic:
        listener.note(f"others are using this server ({text}): hits are theirs and ours")
        return
    raise MissingDependencyError(
        "others are using this server, so that hits could not be told apart",
        where=str(client.base),
        found=text,
        way_out="take it out of service, or go on with --allow-traffic",
    )


async def set_apart(client: LiveClient, canary: Canary, probe: Probe, listener: Listener) -> str | None:
    """Empty the cache by reset, else take a salt that nobody used before. Gives the salt of the run.

    Raises:
        MissingDependencyError: the reset leaves the canary in the cache, and salts are ignored.
    """
    if not probe.hit:
        listener.note(
            "the probe prompt never hits here, so that an empty cache cannot be told from a full one"
        )
    elif await client.post_once(RESET) == 200 and not await canary.still_cached():
        listener.note("the cache was emptied by reset, and the probe prompt is gone")
        return None
    salt = f"kvtune-{os.urandom(8).hex()}"
    if await canary.still_cached(salt):
        raise MissingDependencyError(
            "the cache can be neither emptied nor set apart",
            where=str(client.base),
            found="a reset leaves the probe prompt in it, and a cache_salt is ignored",
            way_out="restart the server with VLLM_SERVER_DEV_MODE=1, or use --serve",
        )
    listener.note("the cache cannot be emptied here: this run is set apart by a cache_salt of its own")
    return salt
