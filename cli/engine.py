"""From options to the server's settings: typed flags, and the files that say how a server runs.

Knows the options' syntax and reads files; how sizes follow from them is for `kvtune.analyzers.sizing`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from kvtune.analyzers.hardware import Hardware, parse_hardware
from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.profiles import NEWEST, profile_for
from kvtune.analyzers.refusal import EngineRefusal
from kvtune.analyzers.resolver import resolve_sizes
from kvtune.analyzers.sizing.engine_config import engine_config_from_sources
from kvtune.analyzers.sizing.metrics import ServerMetrics, read_metrics
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.releases import parse_release, sizing_rules
from kvtune.analyzers.sizing.serve_command import ServeCommand
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.analyzers.sizing.sources import SizedServer, SizeSources
from kvtune.analyzers.sizing.startup_log import StartupLog, read_startup_log
from kvtune.cli.analysis_options import EngineOptions, SizeOptions
from kvtune.tokenization.errors import MissingDependencyError, UnusableInputError
from kvtune.tokenization.hub import find_model
from kvtune.tokenization.small_file import read_small_file

if TYPE_CHECKING:
    from kvtune.analyzers.report import SizeSource

UNSET = "unset"
UNLIMITED = "unlimited"
DENSE = "none"
_DURATIONS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_CONFIG_BYTES = 1 << 26
_MAX_METRICS_BYTES = 1 << 26
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Server:
    """A server's settings, where its sizes are known from, caveats for what nobody stated, and all that sizes it.

    `upgraded_from` is the release that serves, where the settings are those of a newer one.
    """

    config: EngineConfig
    size_source: SizeSource
    assumed: tuple[str, ...]
    sized: SizedServer | None = None
    upgraded_from: str | None = None


def server_of(
    engine: EngineOptions,
    sizes: SizeOptions,
    model: str | None,
    serve: ServeCommand | None = None,
    *,
    upgrades: bool = False,
) -> Server:
    """The server that the options describe, under the flags of a serve command where one is given.

    `model` is the model in use, whose config.json may give the sizes. With `upgrades`, a release without a match unit
    is taken to become the newest one.

    Raises:
        UnusableInputError: an option or file that cannot be read, no sizes, groups of unknown kinds, or an engine
            that would not start.
        MissingDependencyError: the server of `--metrics URL` does not answer.
    """
    flags = serve.flags if serve is not None else serve_flags(engine)
    sources = size_sources(flags, sizes, model, parse_hardware(engine.hardware) if engine.hardware else None)
    config, sized = engine_config_from_sources(sources)
    upgraded_from = None
    if upgrades and not sizing_rules(parse_release(config.version)).match_unit:
        upgraded_from = config.version
        newest = replace(sources, flags=replace(sources.flags, version=NEWEST.version))
        config, sized = engine_config_from_sources(newest)
    if engine.state_export is not None:
        groups = tuple(
            replace(group, export_alignment=engine.state_export) if group.kind == "mamba" else group
            for group in config.groups
        )
        config = replace(config, groups=groups)
    _require_start(config)  # before a trace is read
    return Server(config, sized.source, tuple(sized.warnings), sized, upgraded_from)


def _require_start(config: EngineConfig) -> None:
    profile = profile_for(config.version).profile
    try:
        resolve_sizes(config, profile)
    except EngineRefusal as refusal:
        raise UnusableInputError(
            f"the engine refuses to start: {refusal}",
            way_out="`kvtune resolve` shows its sizes and the units that it takes",
        ) from refusal


def serve_flags(engine: EngineOptions) -> ServeFlags:
    """The typed options as the server's flags; what was not said stays unsaid.

    Raises:
        UnusableInputError: an option that cannot be read.
    """
    method, drafts = _draft(engine.draft)
    return ServeFlags(
        version=engine.engine_version,
        prefix_match_unit=_number("--match-unit", engine.match_unit, UNSET),
        num_gpu_blocks=_number("--num-blocks", engine.num_blocks, UNLIMITED, least=2),
        unlimited_pool=engine.num_blocks == UNLIMITED,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        max_model_len=engine.max_model_len,
        retention_interval=_number("--retention-interval", engine.retention_interval, DENSE, least=0),
        retention_given=engine.retention_interval is not None,
        speculative_method=method,
        num_speculative_tokens=drafts,
        state_export=engine.state_export,
        decode_context_parallel_size=engine.dcp,
        hash_algo=engine.hash_algo,
        enable_prefix_caching=False if engine.no_prefix_caching else None,
        kv_connector="configured" if engine.kv_connector else None,
    )


def split_serve_command(words: list[str]) -> tuple[list[str], list[str]]:
    """A command line's words before and from `vllm serve` on."""
    for index, word in enumerate(words[:-1]):
        if Path(word).name == "vllm" and words[index + 1] == "serve":
            return words[:index], words[index:]
    return words, []


def size_sources(
    flags: ServeFlags, sizes: SizeOptions, model: str | None, hardware: Hardware | None = None
) -> SizeSources:
    """Everything that says something about sizes, read. The model's own config counts where no groups are stated: a
    log and a metrics page give sizes, the config says which kind of group has which.

    Raises: as `server_of`.
    """
    config = Path(sizes.model_config) if sizes.model_config else None
    measured = sizes.startup_log or sizes.metrics
    if hardware is not None and hardware.count and flags.tensor_parallel_size == 1:
        flags = replace(flags, tensor_parallel_size=hardware.count)
    if config is None and model is not None and (hardware is not None or not sizes.groups):
        beside = Path(model) / "config.json"
        if beside.is_file():
            config = beside
        elif not (measured or sizes.groups):
            config = find_model(model) / "config.json"
    return SizeSources(
        flags=flags,
        groups=parse_groups(sizes.groups) if sizes.groups else None,
        model_config=_read_model_config(config) if config else None,
        startup_log=_read_startup_log(sizes.startup_log) if sizes.startup_log else None,
        metrics=_read_metrics(sizes.metrics) if sizes.metrics else None,
        hardware=hardware,
    )


def _read_model_config(path: Path) -> ModelConfig:
    path = path / "config.json" if path.is_dir() else path
    data = read_small_file(path, _MAX_CONFIG_BYTES, "a model config")
    try:
        return ModelConfig.parse(json.loads(data), where=str(path))
    except (ValueError, RecursionError) as error:
        raise UnusableInputError("is not JSON", where=str(path), wanted="a hub's config.json") from error


def _read_startup_log(path: str) -> StartupLog:
    with Path(path).open(encoding="utf-8", errors="replace") as lines:
        return read_startup_log(_bounded(lines, path), where=path)


def _read_metrics(place: str) -> ServerMetrics:
    if not place.startswith(("http://", "https://")):
        with Path(place).open(encoding="utf-8", errors="replace") as lines:
            return read_metrics(_bounded(lines, place), where=place)
    from urllib.request import urlopen

    try:
        with urlopen(place, timeout=_TIMEOUT_S) as answer:
            page = answer.read(_MAX_METRICS_BYTES)
    except OSError as error:
        raise MissingDependencyError(
            f"does not answer: {getattr(error, 'reason', error)}", where=place, field="--metrics"
        ) from error
    return read_metrics(page.decode("utf-8", errors="replace").splitlines(), where=place)


def _bounded(lines: TextIO, where: str, longest: int = 1 << 20) -> Iterator[str]:
    """The lines of a text file; what is longer than `longest` characters comes in pieces.

    Raises:
        UnusableInputError: it is no text, so that it may have no end either.
    """
    while line := lines.readline(longest):
        if "\0" in line:
            raise UnusableInputError("is no text file", where=where, found="a NUL character")
        yield line


def units_of(text: str) -> tuple[int, ...] | None:
    """The value of --units: None for `auto`.

    Raises:
        UnusableInputError: an entry that is no positive number.
    """
    if text == "auto":
        return None
    wanted = "auto, or a comma list such as 16,48,96"
    return tuple(_positive("--units", part.strip(), wanted) for part in text.split(","))


def loads_of(text: str | None) -> tuple[float, ...]:
    """The value of --load: multiples of the trace's own rate, ascending as given.

    Raises:
        UnusableInputError: an entry that is no multiple from 0.001 to 1,000, or more than 12 of them.
    """
    if text is None:
        return ()
    loads: list[float] = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = 0.0
        if not 1e-3 <= value <= 1e3 or len(loads) == 12:
            raise UnusableInputError(
                "is unusable",
                field="--load",
                found=repr(part[:40]),
                wanted="at most 12 multiples of the trace's rate from 0.001 to 1,000, such as 0.25,1,4",
            )
        loads.append(value)
    return tuple(dict.fromkeys(loads))


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


def _number(name: str, text: str | None, word: str, *, least: int = 1) -> int | None:
    """A number of at least `least`; None for `word` and for what was not said."""
    if text is None or text == word:
        return None
    return _positive(name, text, f"{word}, or a number from {least} on", least=least)


def _positive(name: str, text: str, wanted: str, *, least: int = 1) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) >= least):
        raise UnusableInputError("is unusable", field=name, found=repr(text[:40]), wanted=wanted)
    return int(text)


def _draft(text: str | None) -> tuple[str | None, int]:
    """The method of --draft and its number of tokens."""
    if text is None:
        return None, 0
    method, colon, number = text.partition(":")
    wanted = "METHOD:K, for instance eagle:3"
    if not (method and colon):
        raise UnusableInputError("is unusable", field="--draft", found=repr(text[:40]), wanted=wanted)
    return method, _positive("--draft", number, wanted)
