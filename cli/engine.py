"""From options to the server's settings: which sizes, which release, what had to be assumed.

Knows the options' syntax; what the settings do is for `kvtune.analyzers`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvtune.analyzers.layout import Drafter, EngineConfig, KVCacheGroup, parse_groups
from kvtune.analyzers.profiles import profile_for
from kvtune.cli.options import EngineOptions, SizeOptions
from kvtune.tokenization.errors import UnusableInputError

if TYPE_CHECKING:
    from kvtune.analyzers.report import SizeSource

UNSET = "unset"
UNLIMITED = "unlimited"
DENSE = "none"
_DURATIONS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Server:
    """A server's settings, where its sizes are known from, and caveats for what nobody stated."""

    config: EngineConfig
    size_source: SizeSource
    assumed: tuple[str, ...]


def server_of(engine: EngineOptions, sizes: SizeOptions, model: str | None) -> Server:
    """Read every engine option. `model` is the model in use, whose config.json may give the sizes.

    Raises:
        UnusableInputError: an option that cannot be read, or no sizes.
    """
    selected = profile_for(engine.engine_version)
    groups, source = _groups(sizes, model)
    if any(group.kind == "unspecified" for group in groups):
        raise UnusableInputError(
            "names block sizes only",
            field="--groups",
            found=sizes.groups,
            wanted="the kind of each group, since the kinds decide what is kept",
            way_out="for instance mamba:528*3,full:528",
        )
    if engine.state_export is not None:
        groups = tuple(
            replace(group, export_alignment=engine.state_export) if group.kind == "mamba" else group
            for group in groups
        )
    config = EngineConfig(
        groups=groups,
        version=selected.profile.version,
        match_unit=_number("--match-unit", engine.match_unit, UNSET),
        num_blocks=_number("--num-blocks", engine.num_blocks, UNLIMITED, least=2),
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        max_model_len=engine.max_model_len,
        retention_interval=_number("--retention-interval", engine.retention_interval, DENSE, least=0),
        enable_prefix_caching=not engine.no_prefix_caching,
        kv_connector=engine.kv_connector,
        decode_context_parallel_size=engine.dcp,
        drafter=_drafter(engine.draft),
        hash_algo=engine.hash_algo,
    )
    assumed = [selected.caveat] if selected.caveat else []
    if config.num_blocks is None:
        assumed.append("the pool was taken as unlimited: with --num-blocks evictions would count too")
    return Server(config, source, tuple(assumed))


def units_of(text: str) -> tuple[int, ...] | None:
    """The value of --units: None for `auto`.

    Raises:
        UnusableInputError: an entry that is no positive number.
    """
    if text == "auto":
        return None
    return tuple(
        _positive("--units", part.strip(), "auto, or a comma list such as 16,48,96")
        for part in text.split(",")
    )


def duration_of(text: str | None) -> float | None:
    """The value of --window in seconds: `90s`, `30m`, `1h`, `2d`, or a number of seconds.

    Raises:
        UnusableInputError: no such duration.
    """
    if text is None:
        return None
    number, unit = (text[:-1], text[-1]) if text[-1:] in _DURATIONS else (text, "s")
    try:
        seconds = float(number) * _DURATIONS[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e12:
        raise UnusableInputError(
            "is no duration", field="--window", found=repr(text[:40]), wanted="for instance 30m, 1h or 2d"
        )
    return seconds


def _groups(sizes: SizeOptions, model: str | None) -> tuple[tuple[KVCacheGroup, ...], SizeSource]:
    if sizes.groups:
        return parse_groups(sizes.groups), "flags"
    raise UnusableInputError(
        "the sizes of the KV cache groups are not known",
        found=model,
        way_out="state them with --groups, for instance mamba:528*3,full:528",
    )


def _number(name: str, text: str, word: str, *, least: int = 1) -> int | None:
    """A number of at least `least`; None for `word`."""
    if text == word:
        return None
    return _positive(name, text, f"{word}, or a number from {least} on", least=least)


def _positive(name: str, text: str, wanted: str, *, least: int = 1) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) >= least):
        raise UnusableInputError("is unusable", field=name, found=repr(text[:40]), wanted=wanted)
    return int(text)


def _drafter(text: str | None) -> Drafter | None:
    if text is None:
        return None
    method, colon, number = text.partition(":")
    wanted = "METHOD:K, for instance eagle:3"
    if not (method and colon):
        raise UnusableInputError("is unusable", field="--draft", found=repr(text[:40]), wanted=wanted)
    return Drafter(method=method, num_speculative_tokens=_positive("--draft", number, wanted))
