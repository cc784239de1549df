"""What stands around the engine is said by `analyze` as by `resolve`, for the match unit that is advised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvtune.analyzers.analysis import find
from kvtune.analyzers.deployment import deployment_caveats
from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.options import AnalyzeOptions, Provenance
from kvtune.analyzers.report import TokenizerInfo, TraceInfo
from kvtune.analyzers.sizing.deployment_findings import unmodelled_flags
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.analyzers.sweep import no_progress
from tests.analyzers.log_check.test_log_check import repeated

CONFIG = EngineConfig(groups=parse_groups("mamba:1024*3,full:1024"))
TRACE = repeated([900] * 40)
"""Prompts below the block, each sent three times: only a finer unit can hit."""


def caveats(config: EngineConfig, flags: ServeFlags, *unmodelled: str, **options: int) -> tuple[str, ...]:
    found = find(TRACE, config, AnalyzeOptions(**options), no_progress)  # type: ignore[arg-type]
    provenance = Provenance(
        kvtune_version="",
        command="",
        created="",
        trace=TraceInfo(files=(), sha256="", format="", requests=1, prompt_tokens=1),
        tokenizer=TokenizerInfo(kind="ids", source=""),
        size_source="flags",
        flags=flags,
        unmodelled=unmodelled,
    )
    return (*found.choice.doubts, *deployment_caveats(found, provenance))


def test_a_finer_unit_beside_a_connector_is_said_first_and_never_sure() -> None:
    plain = find(TRACE, CONFIG, AnalyzeOptions(), no_progress).choice
    found = find(TRACE, replace(CONFIG, kv_connector=True), AnalyzeOptions(), no_progress).choice
    assert (plain.action, found.action) == ("set", "set")
    assert plain.unit == found.unit < 1_024
    assert found.confidence == "low"
    assert "LMCache#4247" in found.doubts[0]
    assert not any("KV connector" in doubt for doubt in plain.doubts)


def test_a_connector_beside_whole_blocks_is_no_reason() -> None:
    config = replace(CONFIG, kv_connector=True)
    found = find(repeated([2_000] * 40), config, AnalyzeOptions(units=(1_024,)), no_progress)
    assert not any("KV connector" in doubt for doubt in found.choice.doubts)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (ServeFlags(kv_connector="LMCacheMPConnector"), "Change: lmcache server --chunk-size 1024."),
        (ServeFlags(kv_connector="LMCacheConnectorV1"), "Change: LMCACHE_CHUNK_SIZE=1024."),
        (ServeFlags(kv_connector="LMCacheConnectorV1"), "--mamba-align-single-block-prefill"),
        (ServeFlags(data_parallel_size=4), "Each of the 4 data parallel ranks"),
        (ServeFlags(pipeline_parallel_size=2), "2 pipeline stages"),
    ],
)
def test_each_finding_is_a_caveat(flags: ServeFlags, words: str) -> None:
    config = replace(CONFIG, kv_connector=flags.kv_connector is not None)
    assert any(words in caveat for caveat in caveats(config, flags))
    assert not any(words in caveat for caveat in caveats(CONFIG, ServeFlags()))


def test_single_block_prefill_settles_it() -> None:
    flags = ServeFlags(kv_connector="LMCacheConnectorV1", mamba_align_single_block_prefill=True)
    assert not any("one block a step" in one for one in caveats(replace(CONFIG, kv_connector=True), flags))


def test_ranks_that_are_modelled_are_no_caveat() -> None:
    assert not any(
        "data parallel" in one for one in caveats(CONFIG, ServeFlags(data_parallel_size=4), replicas=4)
    )


def test_flags_that_nothing_models_are_named_once() -> None:
    assert unmodelled_flags(("--port", "--foo", "--api-key", "--foo", "--bar")) == ("--foo", "--bar")
    assert "Flags that are not modelled: --foo." in caveats(CONFIG, ServeFlags(), "--foo")
