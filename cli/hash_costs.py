"""What hashing costs on this machine, kept between runs: measured once for a machine, a Python and a release."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path

import msgspec

from kvtune import __version__
from kvtune.analyzers.hash_cost import KnownCosts
from kvtune.tokenization import cache

_KIND = "hash-costs"


class _Kept(msgspec.Struct):
    hashes: dict[int, tuple[float, int]]
    lookup_s: float


def recall() -> KnownCosts:
    """What earlier runs measured; nothing where that is missing or unusable."""
    entry = cache.load(_KIND, _key())
    with suppress(msgspec.MsgspecError):
        if entry is not None:
            kept = msgspec.msgpack.decode(entry, type=_Kept)
            if kept.lookup_s > 0 and all(seconds > 0 for seconds, _ in kept.hashes.values()):
                return KnownCosts(kept.hashes, kept.lookup_s)
    return KnownCosts()


def keep(costs: KnownCosts) -> None:
    """For later runs, if this one measured something."""
    if costs.has_grown and costs.lookup_s is not None:
        cache.keep(_KIND, _key(), msgspec.msgpack.encode(_Kept(costs.hashes, costs.lookup_s)))


def _key() -> str:
    return cache.key_of(
        "1", __version__, platform.python_version(), platform.node(), platform.machine(), _processor()
    )


def _processor() -> str:
    """The processor's name; "" where the system does not tell."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        return next((line for line in lines if line.startswith("model name")), "")
    return platform.processor()
