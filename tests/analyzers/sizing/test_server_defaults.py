"""Defaults by release against the lines of the released sources that set them (`tests/data/server_defaults`)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvtune.analyzers.drafting import EAGLE_LIKE
from kvtune.analyzers.layout import parse_groups
from kvtune.analyzers.profiles import PROFILES, server_defaults
from kvtune.analyzers.profiles.server_defaults import HASH_ALGO, batch_defaults, default_retention
from kvtune.analyzers.sizing.engine_config import engine_config
from kvtune.analyzers.sizing.releases import sizing_rules
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.analyzers.sizing.sources import SizeSources, size_server

SOURCES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "server_defaults" / "sources.json").read_text()
)
GIB = 2**30
RELEASES = [pytest.param(version, id=version) for version in SOURCES]


def text(version: str, default: str) -> str:
    return " ".join(SOURCES[version][default]["text"])


def release_of(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major), int(minor)


def test_every_release_with_rules_is_here() -> None:
    assert set(SOURCES) == set(PROFILES)


@pytest.mark.parametrize("version", RELEASES)
def test_the_table_has_every_line(version: str) -> None:
    rows = [
        line for line in (server_defaults.__doc__ or "").splitlines() if line.startswith(f"| {version} |")
    ]
    listed = {
        int(number) for row in rows for number in re.findall(r"\b\d+\b", row.removeprefix(f"| {version} |"))
    }
    assert listed == {line for entry in SOURCES[version].values() for line in entry["lines"]}


@pytest.mark.parametrize("version", RELEASES)
def test_caching_chunking_and_hashes(version: str) -> None:
    opt_in = "not model_config.is_hybrid" in text(version, "prefix caching")
    assert sizing_rules(release_of(version)).hybrid_caching is not opt_in
    assert (
        text(version, "chunked prefill")
        == "default_chunked_prefill = model_config.is_chunked_prefill_supported"
    )
    assert text(version, "hash algorithm").endswith(f'= "{HASH_ALGO}"')
    assert "default=0" in text(version, "long-prefill threshold")


@pytest.mark.parametrize("version", RELEASES)
def test_the_mode_of_mamba_caches(version: str) -> None:
    """The model's own support for `all` is asked before 0.28."""
    asked = "supports_mamba_prefix_caching" in text(version, "mamba cache mode")
    assert sizing_rules(release_of(version)).default_all is asked


@pytest.mark.parametrize("version", RELEASES)
def test_tiers_of_step_budgets(version: str) -> None:
    tiers, release = text(version, "batch tiers"), release_of(version)
    thresholds = [int(number) for number in re.findall(r"device_memory >= (\d+) \* GiB", tiers)]
    servers = [int(number) for number in re.findall(r"OPENAI_API_SERVER: (\d+)", tiers)]
    assert thresholds == ([160, 70] if len(SOURCES[version]["batch tiers"]["lines"]) == 2 else [70])
    budgets, requests = servers[::2], servers[1::2]
    for memory, budget, count in zip(thresholds, budgets, requests, strict=True):
        assert batch_defaults(release, memory * GIB, "card") == (budget, count)
        assert batch_defaults(release, memory * GIB - 1, "card").max_num_batched_tokens < budget
    assert batch_defaults(release, 80 * GIB, "A100").max_num_batched_tokens == 2_048
    small = "is_gb10" in tiers
    assert (batch_defaults(release, 119 * GIB, "GB10").max_num_batched_tokens == 2_048) is small


@pytest.mark.parametrize("version", RELEASES)
def test_retention(version: str) -> None:
    said, release = text(version, "retention"), release_of(version)
    plain = default_retention(release, hybrid=True, draft_method=None)
    drafting = default_retention(release, hybrid=True, draft_method="mtp")
    if "use_eagle" in said:
        assert (plain, drafting) == (0, None)
        assert default_retention(release, hybrid=False, draft_method="mtp") == 0
        assert default_retention(release, hybrid=True, draft_method="ngram") == 0
    else:
        assert plain == drafting == (0 if "default=0" in said else None)


@pytest.mark.parametrize("method", sorted(EAGLE_LIKE))
def test_0_29_keeps_every_state_of_a_hybrid_beside_a_drafter(method: str) -> None:
    """vllm#53504: served without the option, a prompt that is sent again hits; with 0 stated it does not."""

    def interval(groups: str, **flags: Any) -> int | None:
        drafting = ServeFlags(version="0.29.0", speculative_method=method, num_speculative_tokens=2, **flags)
        return engine_config(
            size_server(SizeSources(flags=drafting, groups=parse_groups(groups)))
        ).retention_interval

    assert interval("mamba:1600*3,full:1600") is None
    assert interval("mamba:1600*3,full:1600", retention_given=True, retention_interval=0) == 0
    assert interval("full:16") == 0


@pytest.mark.parametrize(
    ("version", "given", "warned"), [("0.27", None, True), ("0.27", True, False), ("0.28", None, False)]
)
def test_caching_that_nobody_states_is_said(version: str, given: bool | None, warned: bool) -> None:
    flags = ServeFlags(version=version, enable_prefix_caching=given)
    server = size_server(SizeSources(flags=flags, groups=parse_groups("mamba:528*3,full:528")))
    assert server.prefix_caching
    assert any("--enable-prefix-caching" in warning for warning in server.warnings) is warned
