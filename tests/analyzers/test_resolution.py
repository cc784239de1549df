"""The resolve document: sizes, units, what-ifs, findings, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvtune.analyzers.layout import parse_groups
from kvtune.analyzers.resolution import Resolution, resolve
from kvtune.analyzers.sizing.engine_config import engine_config_from_sources
from kvtune.analyzers.sizing.metrics import read_metrics
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.analyzers.sizing.sources import SizeSources, size_server
from kvtune.analyzers.sizing.startup_log import read_startup_log
from kvtune.tokenization.errors import UnusableInputError

DATA = Path(__file__).parents[1] / "data"


def of_model(name: str, units: list[int] | None = None, **flags: Any) -> Resolution:
    path = DATA / "models" / "configs" / name / "config.json"
    config = ModelConfig.parse(json.loads(path.read_bytes()), name)
    return resolve(size_server(SizeSources(flags=ServeFlags(**flags), model_config=config)), units=units)


def of_groups(spec: str, units: list[int] | None = None, **flags: Any) -> Resolution:
    return resolve(
        size_server(SizeSources(flags=ServeFlags(**flags), groups=parse_groups(spec))), units=units
    )


def names(found: Resolution) -> set[str]:
    return {finding.name for finding in found.findings}


def blocks(found: Resolution, what: str) -> dict[str, int | None]:
    return {row.flag.split()[-1]: row.attention_block_size for row in found.what_if if row.what == what}


def test_a_model_resolves_to_a_whole_document() -> None:
    found = of_model("qwen3.5-4b")
    assert [(row.kind, row.block_size, row.count, row.layers) for row in found.groups] == [
        ("mamba", 528, 3, 8),
        ("full", 528, 1, 8),
    ]
    assert (found.attention_block_size, found.mamba_page_bytes, found.attention_bytes_per_token) == (
        528,
        2_146_304,
        4096,
    )
    assert (found.padding_pct, found.scheduler_block_size, found.hash_block_size) == (0.76, 528, 528)
    assert (found.cache_hit_alignment, found.partial_hits) == (528, False)
    assert (found.minimum_reusable_prefix, found.minimum_shared_prefix) == (529, 528)
    assert (found.source, found.error, found.warnings) == ("model-config", None, ())
    assert len(found.candidates) == 20


def test_a_finer_unit_lowers_the_floor() -> None:
    found = of_model("qwen3.5-4b", prefix_match_unit=16)
    assert (found.hash_block_size, found.cache_hit_alignment, found.partial_hits) == (16, 16, True)
    assert (found.minimum_reusable_prefix, found.minimum_shared_prefix) == (17, 528)


def test_bare_sizes_as_in_the_contract() -> None:
    found = of_groups("1024,32", [32, 16, 8, 48])
    assert (found.scheduler_block_size, found.hash_block_size) == (1024, 32)
    rows = {row.unit: row for row in found.candidates}
    assert {unit for unit, row in rows.items() if row.valid} == {32, 16, 8}
    assert "group 0 (block 1,024)" in (rows[48].reason or "")
    assert any("kinds are not known" in warning for warning in found.warnings)


def test_what_ifs_of_the_27b() -> None:
    found = of_model("qwen3.5-27b")
    assert blocks(found, "KV cache dtype") == {"bfloat16": 784, "fp8": 1568, "nvfp4": 2784}
    assert blocks(found, "state dtype") == {"float32": 784, "bfloat16": 400}
    assert blocks(found, "draft tokens") == {"0": 784, "1": 800, "3": 800, "7": 832}
    assert {row.flag for row in found.what_if if row.current} >= {
        "--kv-cache-dtype bfloat16",
        "num_speculative_tokens 0",
    }
    ranks = {row.flag: row for row in found.what_if if row.what == "tensor parallel"}
    assert ranks["--tensor-parallel-size 8"].attention_block_size == 400
    assert of_model("qwen3-8b").what_if == ()


def test_latent_attention_has_its_backends_block() -> None:
    plain = of_model("deepseek-v3")
    assert [row.attention_block_size for row in plain.what_if] == [16, 32, 64, 128]
    assert "attention_backend_unknown" in names(plain)
    assert names(of_model("deepseek-v3", attention_backend="FLASHMLA")) == set()
    assert "attention_backend_unknown" in names(
        of_model("ling-3.0-flash", version="0.26", enable_prefix_caching=True)
    )
    # From 0.27 on every hybrid with latent attention rounds to 128.
    assert "attention_backend_unknown" not in names(of_model("ling-3.0-flash"))


def test_a_what_if_that_cannot_be_served_says_why() -> None:
    rows = {row.flag: row for row in of_model("granite-4.0-h-350m").what_if}
    assert rows["--tensor-parallel-size 8"].attention_block_size is None
    assert "a divisor of 12" in (rows["--tensor-parallel-size 8"].error or "")


def test_a_refused_unit_is_the_documents_error() -> None:
    found = of_model("qwen3.5-4b", prefix_match_unit=64)
    assert found.error is not None and "64" in found.error
    assert (found.scheduler_block_size, found.hash_block_size, found.cache_hit_alignment) == (528, 528, 528)
    (refused,) = [finding for finding in found.findings if finding.name == "unit_refused"]
    assert refused.change == "--prefix-match-unit 48 or 66"


def test_other_refusals_still_give_sizes() -> None:
    found = of_groups("mamba:64:mode=all,full:64")
    assert found.error is not None and "align" in found.error
    assert (found.scheduler_block_size, found.hash_block_size) == (64, 64)


def test_before_the_match_unit_there_are_sizes_only() -> None:
    found = of_model("qwen3.5-4b", [16], version="0.24", enable_prefix_caching=True)
    assert (found.attention_block_size, found.cache_hit_alignment, found.error) == (528, 528, None)
    assert [(row.unit, row.valid) for row in found.candidates] == [(528, True), (16, False)]
    assert found.candidates[1].reason == "there is no match unit before 0.26"
    assert any("no match unit in 0.24" in warning for warning in found.warnings)
    asked = of_model("qwen3.5-4b", version="0.24", enable_prefix_caching=True, prefix_match_unit=64)
    assert (asked.error, asked.match_unit) == (None, None)
    assert any("--prefix-match-unit 64 does not exist" in warning for warning in asked.warnings)


def test_an_unknown_newer_release_is_loud() -> None:
    assert any(
        "newer than the newest release" in warning
        for warning in of_model("qwen3.5-4b", version="0.99").warnings
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lambda: of_model("qwen3.5-4b"), {"documented_unit_illegal", "prefill_kernel_unknown"}),
        (lambda: of_model("qwen3.5-4b", version="0.32"), {"documented_unit_illegal"}),
        (lambda: of_model("qwen3.5-4b", gdn_prefill_backend="flashinfer"), set()),
        (lambda: of_model("nemotron-3-super-120b-a12b", kv_cache_dtype="fp8", max_model_len=4096),
         {"max_model_len_below_block", "kv_dtype_raises_block", "step_budget_below_block"}),
        (lambda: of_model("qwen3.5-4b", version="0.25"), {"prefix_caching_off"}),
        (lambda: of_groups("mamba:64*3,full:64,swa:64:window=512", prefix_match_unit=16),
         {"unit_disabled_by_coarse_group"}),
        (lambda: of_groups("full:64", prefix_match_unit=16, version="0.31"), {"unit_ignored"}),
        (lambda: of_groups("mamba:64,full:64", prefix_match_unit=16, enable_prefix_caching=False),
         {"unit_ignored", "prefix_caching_off"}),
        (lambda: of_groups("full:32,swa:16:window=64", prefix_match_unit=8), {"unit_without_effect"}),
        (lambda: of_groups("mamba:1024,full:32"), {"chunks_miss_the_state_block"}),
        (lambda: of_groups("mamba:1568*3,full:1568", max_num_batched_tokens=2048),
         {"step_budget_not_multiple", "documented_unit_illegal"}),
        (lambda: of_groups("mamba:64,full:64", kv_connector="LMCacheConnectorV1"), {"connector_needs_single_blocks"}),
        (lambda: of_groups("mamba:64,full:64", kv_connector="LMCacheConnectorV1", max_num_batched_tokens=127),
         {"step_budget_not_multiple"}),
        (lambda: of_groups("mamba:64,full:64", kv_connector="LMCacheConnectorV1",
                           mamba_align_single_block_prefill=True), set()),
        (lambda: of_groups("mamba:64,full:64", data_parallel_size=4), {"data_parallel_caches"}),
        (lambda: of_groups("mamba:64,full:64", pipeline_parallel_size=2), {"pipeline_stages"}),
        (lambda: of_groups("mamba:544,full:544", kv_connector="LMCacheConnectorV1"),
         {"connector_chunk_not_multiple", "connector_needs_single_blocks", "documented_unit_illegal"}),
        (lambda: of_groups("mamba:64,full:64", kv_connector="X", prefix_match_unit=16), {"connector_with_finer_unit"}),
        (lambda: of_groups("mamba:64,full:64", speculative_method="mtp", num_speculative_tokens=1), set()),
        (lambda: of_groups("mamba:64,full:64", speculative_method="mtp", num_speculative_tokens=1, version="0.32"),
         {"drafter_drops_a_unit"}),
        (lambda: of_groups("mamba:64,full:64", speculative_method="mtp", num_speculative_tokens=1, version="0.29"),
         {"drafter_drops_a_unit"}),
        (lambda: of_groups("mamba:64,full:64", speculative_method="mtp", num_speculative_tokens=1, version="0.29",
                           retention_given=True, retention_interval=0), {"drafter_hits_nothing"}),
        (lambda: of_groups("mamba:64,full:64", speculative_method="dflash", num_speculative_tokens=7, version="0.32"),
         {"drafter_drops_a_unit"}),
        (lambda: of_groups("mamba:64,full:64", speculative_method="dflash", num_speculative_tokens=7), set()),
        (lambda: of_groups("mamba:64,full:64", speculative_method="mtp", num_speculative_tokens=1, version="0.28"),
         {"drafter_drops_a_unit", "wrong_outputs_reported"}),
        (lambda: of_groups("full:64", speculative_method="mtp", num_speculative_tokens=1, version="0.28"),
         {"drafter_drops_a_unit"}),
        (lambda: of_groups("mamba:64,full:64", speculative_method="mtp", num_speculative_tokens=1, kv_connector="X"),
         {"connector_brings_back_drop"}),
        (lambda: of_model("qwen3.5-27b", num_speculative_tokens=3, speculative_method="mtp",
                          gdn_prefill_backend="triton"), {"drafts_raise_block", "documented_unit_illegal"}),
        (lambda: of_model("granite-4.0-h-tiny", block_size=32, mamba_block_size=64),
         {"block_size_overridden", "mamba_block_size_ignored", "documented_unit_illegal"}),
        (lambda: of_model("gpt-oss-20b", disable_hybrid_kv_cache_manager=True), {"hybrid_manager_disabled"}),
    ],
)  # fmt: skip
def test_findings_by_name(found: Any, expected: set[str]) -> None:
    assert names(found()) == expected


def test_a_finding_names_the_flag_that_changes_it() -> None:
    (finding,) = of_model("qwen3.5-4b", version="0.32").findings
    assert (
        finding.text
        == "64, the documentation's suggestion, does not divide 528: the nearest legal units are 48 and 66"
    )
    assert (
        finding.change == "--prefix-match-unit 48 or 66, whichever your own traffic wants (`kvtune analyze`)"
    )
    budget = of_groups("mamba:1568*3,full:1568", max_num_batched_tokens=2048).findings
    (finding,) = [one for one in budget if one.name == "step_budget_not_multiple"]
    assert (
        "1,568 of the budget's 2,048 tokens" in finding.text
        and "two long prompts never prefill together" in finding.text
    )
    assert finding.change == "--max-num-batched-tokens 3136"


def test_a_log_becomes_a_document_with_places() -> None:
    path = DATA / "logs" / "v0.33.0-colours.log"
    log = read_startup_log(path.read_text().splitlines(), "server.log")
    found = resolve(size_server(SizeSources(startup_log=log)), units=[16, 64])
    assert (found.source, found.engine_version, found.match_unit) == ("startup-log", "0.33.0", 48)
    assert (found.scheduler_block_size, found.hash_block_size, found.cache_hit_alignment) == (576, 48, 48)
    assert found.provenance["scheduler_block_size"] == "server.log:12"
    assert [row.unit for row in found.candidates] == [576, 64, 48, 16]


def test_layers_of_a_run_are_the_largest_with_padding() -> None:
    (mamba, _) = of_model("kimi-linear-48b-a3b").groups
    assert (mamba.count, mamba.layers) == (3, 7)


def test_a_group_that_only_the_log_knows_keeps_hits_on_whole_blocks() -> None:
    """The drafter's sliding window is not in the config: the log's warning is all that shows it."""
    path = DATA / "logs" / "v0.28.0.log"
    config = DATA / "models" / "configs" / "qwen3.8-27b" / "config.json"
    sources = SizeSources(
        startup_log=read_startup_log(path.read_text().splitlines(), "server.log"),
        model_config=ModelConfig.parse(json.loads(config.read_bytes())),
    )
    found = resolve(size_server(sources), units=[16, 832])
    assert (found.match_unit, found.hash_block_size, found.cache_hit_alignment) == (16, 16, 832)
    (row,) = [row for row in found.candidates if row.unit == 16]
    assert (row.valid, row.effective_unit) == (True, 832)
    assert "SlidingWindowManager can be looked up by whole blocks only" in (row.reason or "")
    assert "unit_disabled_by_coarse_group" in names(found)
    with pytest.raises(UnusableInputError, match=r"server\.log:9: .*SlidingWindowManager.*--groups"):
        engine_config_from_sources(sources)


def test_a_pool_that_holds_little_is_named() -> None:
    lines = [
        "INFO GPU KV cache size: 262,144 tokens, Maximum concurrency for 262,144 tokens per request: 1.00x"
    ]
    server = size_server(
        SizeSources(groups=parse_groups("mamba:64,full:64"), startup_log=read_startup_log(lines))
    )
    assert names(resolve(server)) == {"pool_holds_few_requests"}
    assert names(of_groups("mamba:7808*6,full:7808", num_gpu_blocks=58)) == {"short_requests_pin_much"}
    assert names(of_groups("mamba:7808*6,full:7808", num_gpu_blocks=5800)) == set()


def test_a_server_that_never_hit_is_named() -> None:
    page = [
        'vllm:cache_config_info{block_size="1568",effective_attention_block_size="1568",mamba_cache_mode="align"} 1',
        'vllm:prefix_cache_queries_total{engine="0"} 801405',
        'vllm:prefix_cache_hits_total{engine="0"} 0',
    ]
    found = resolve(size_server(SizeSources(metrics=read_metrics(page))))
    (text,) = [finding.text for finding in found.findings if finding.name == "no_hits_so_far"]
    assert text == "0 of 801,405 queried tokens hit: prompts below 1,569 tokens never do"


def test_builds_without_a_release_take_the_newest_rules() -> None:
    found = of_model("qwen3.5-4b", version="0.1.dev20073+g8e685d198")
    assert (found.engine_version, found.attention_block_size) == ("0.33.0", 528)
    assert any("development build" in warning for warning in found.warnings)
    assert of_model("qwen3.5-4b", version="v0.28.1rc1").engine_version == "v0.28.1rc1"
