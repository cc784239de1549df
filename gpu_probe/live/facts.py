"""What a server that answers says of itself: release, model, and the settings and sizes that it resolved.

    /version, /v1/models   who it is
    start-up log, /metrics  groups, blocks, pool, unit     (combined by analyzers.sizing)
    /server_info            step budget and limits, where the development endpoints are on

Knows where each fact stands; what it means for hits is the analyzers' business.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.profiles import FIRST_WITH_MATCH_UNIT, UnknownReleaseError, profile_for
from kvtune.analyzers.sizing.engine_config import engine_config_from_sources
from kvtune.analyzers.sizing.metrics import read_metrics
from kvtune.analyzers.sizing.releases import parse_release
from kvtune.analyzers.sizing.sources import DEFAULT_STEP_BUDGET, SizeSources
from kvtune.analyzers.sizing.startup_log import StartupLog, read_startup_log
from kvtune.gpu_probe.live.client import LiveClient, RefusedRequestError
from kvtune.gpu_probe.live.counters import Counters, Release, read_counters
from kvtune.tokenization.errors import MissingDependencyError

INFO_TIMEOUT_S = 180.0
"""At its first call this endpoint also describes the machine, which takes a while."""
_SCHEDULER_SETTINGS = ("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold")


@dataclass(frozen=True)
class ServerFacts:
    """A server, as it describes itself.

    Attributes:
        version: its release, as it says it. model: the name that requests must give.
        config: everything that decides hits.
        coarse_managers: the cache managers for which the log says that hits inside a block are off.
        warnings: assumptions, and sources that disagreed.
    """

    version: str
    model: str
    config: EngineConfig
    coarse_managers: str | None
    warnings: tuple[str, ...]

    @property
    def release(self) -> Release:
        return parse_release(self.version)


async def read_facts(client: LiveClient, sources: SizeSources, log: Path | None) -> ServerFacts:
    """Ask the server. `sources` are what is known beside it; `log` is the start-up log, where there is one.

    Raises:
        MissingDependencyError: it is no vLLM, or wants a key.
        UnusableInputError: what it says does not give the kinds or sizes of the groups.
    """
    version = _text((await client.get_json("/version")), "version", client)
    _check_release(version)
    model, max_model_len = _served_model(await client.get_json("/v1/models"), client)
    metrics = read_metrics((await client.get_text("/metrics")).splitlines(), where="/metrics")
    startup_log = _startup_log(log)
    settings = await _scheduler_settings(client)
    flags = replace(sources.flags, version=version, max_model_len=max_model_len, **settings)
    if startup_log is None or startup_log.number("prefix_match_unit") is None:
        flags = replace(flags, prefix_match_unit=metrics.number("prefix_match_unit"))
    config, sized = engine_config_from_sources(
        replace(sources, flags=flags, startup_log=startup_log, metrics=metrics)
    )
    coarse = startup_log.text("coarse_managers") if startup_log is not None else None
    warnings = tuple(text for text in sized.warnings if "is stale" not in text)
    if sized.flags.max_num_batched_tokens is None:
        warnings += (f"the step budget is not known: {DEFAULT_STEP_BUDGET} tokens were assumed",)
    return ServerFacts(version, model, config, coarse, warnings)


async def read_page(client: LiveClient, release: Release) -> Counters:
    """The counters right now."""
    return read_counters(await client.get_text("/metrics"), release, where=str(client.base / "metrics"))


def _check_release(version: str) -> None:
    try:
        profile_for(version)
    except UnknownReleaseError:
        raise MissingDependencyError(
            "this vLLM has no prefix match unit, so there is nothing to validate",
            found=version,
            wanted=f"release {FIRST_WITH_MATCH_UNIT} or newer",
        ) from None


def _startup_log(log: Path | None) -> StartupLog | None:
    if log is None:
        return None
    with log.open(encoding="utf-8", errors="replace") as file:
        return read_startup_log(file, where=log.name)


async def _scheduler_settings(client: LiveClient) -> dict[str, Any]:
    """Settings that stand neither in the log nor on the metrics page; empty where the endpoint is off."""
    try:
        document = await client.get_json("/server_info", timeout_s=INFO_TIMEOUT_S, config_format="json")
    except (MissingDependencyError, RefusedRequestError):
        return {}
    scheduler = _at(document, "vllm_config", "scheduler_config")
    found = {name: _at(scheduler, name) for name in _SCHEDULER_SETTINGS}
    return {
        name: value for name, value in found.items() if isinstance(value, int) and not isinstance(value, bool)
    }


def _served_model(document: object, client: LiveClient) -> tuple[str, int | None]:
    models = _at(document, "data")
    first = models[0] if isinstance(models, list) and models else None
    length = _at(first, "max_model_len")
    return _text(first, "id", client), length if isinstance(length, int) else None


def _text(document: object, key: str, client: LiveClient) -> str:
    value = _at(document, key)
    if not isinstance(value, str):
        raise MissingDependencyError(
            "the server is no vLLM",
            where=str(client.base),
            found=f"no {key} in its answer",
            wanted="vLLM 0.26 or newer",
        )
    return value


def _at(document: Any, *keys: str) -> Any:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document
