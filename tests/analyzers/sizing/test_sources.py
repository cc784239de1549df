"""Sources combined: who wins, what is said about it, and the pool recovered from capacity lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvtune.analyzers.layout import Drafter, KVCacheGroup, parse_groups
from kvtune.analyzers.sizing.engine_config import engine_config, engine_config_from_sources
from kvtune.analyzers.sizing.metrics import ServerMetrics, read_metrics
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.pool import blocks_per_request, num_blocks_from_capacity
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.analyzers.sizing.sources import SizedServer, SizeSources, size_server
from kvtune.analyzers.sizing.startup_log import StartupLog, read_startup_log
from kvtune.tokenization.errors import UnusableInputError

DATA = Path(__file__).parents[2] / "data"


def config(name: str) -> ModelConfig:
    return ModelConfig.parse(
        json.loads((DATA / "models" / "configs" / name / "config.json").read_bytes()), name
    )


def log(name: str) -> StartupLog:
    return read_startup_log((DATA / "logs" / name).read_text().splitlines(), name)


def metrics(**labels: str) -> ServerMetrics:
    inside = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return read_metrics([f"vllm:cache_config_info{{{inside}}} 1.0"], "metrics")


def shape(server: SizedServer) -> str:
    return ", ".join(f"{group.kind}:{group.block_size}*{group.count}" for group in server.layout())


def said(server: SizedServer) -> tuple[str, ...]:
    """The warnings, less that the capacity lines of these shortened logs fit no pool."""
    return tuple(text for text in server.warnings if "fits no pool" not in text)


def test_a_capacity_line_that_fits_no_pool_is_said() -> None:
    """Published for another model: five windows beside one group hold no such number of tokens."""
    lines = [
        "(APIServer pid=1) INFO vLLM API server version 0.27.1",
        "INFO GPU KV cache size: 153,374 tokens, Maximum concurrency for 65,536 tokens per request: 2.34x",
    ]
    server = size_server(
        SizeSources(
            groups=parse_groups("swa:16*5:window=1024,full:32"),
            startup_log=read_startup_log(lines, "server.log"),
        )
    )
    assert server.num_blocks is None
    assert any(
        text.startswith("server.log:2: a capacity of 153,374 tokens and 2.34 requests fits no pool")
        for text in server.warnings
    )
    fits = [
        "INFO GPU KV cache size: 262,144 tokens, Maximum concurrency for 262,144 tokens per request: 1.00x"
    ]
    plain = size_server(SizeSources(groups=parse_groups("full:64"), startup_log=read_startup_log(fits)))
    assert (plain.num_blocks, plain.warnings) == (4096, ())


def test_a_state_as_long_as_the_longest_sequence_is_no_cache() -> None:
    lines = [
        "INFO [interface.py:928] Setting attention block size to 400 tokens to ensure that ...",
        "INFO kv cache group sizes [262144, 262144, 4, 400]",
        "INFO GPU KV cache size: 3,046,184 tokens, Maximum concurrency for 262,144 tokens per request: 11.62x",
    ]
    server = size_server(SizeSources(startup_log=read_startup_log(lines)))
    kinds = [(sized.group.kind, sized.group.mode) for sized in server.groups]
    assert kinds == [("mamba", "none"), ("mamba", "none"), ("ring", None), ("full", None)]
    assert not server.prefix_caching


def test_a_mode_among_the_arguments_makes_a_small_odd_block_a_ring() -> None:
    lines = [
        "INFO non-default args: {'model': 'Qwen/Qwen3.8-Flash-Next', 'mamba_cache_mode': 'align'}",
        "INFO kv cache group sizes [1584, 1584, 1584, 1584, 8, 1584]",
    ]
    server = size_server(SizeSources(startup_log=read_startup_log(lines)))
    assert shape(server) == "mamba:1584*4, ring:8*1, full:1584*1"


def test_a_log_and_its_config_agree_and_give_everything() -> None:
    found, server = engine_config_from_sources(
        SizeSources(model_config=config("qwen3.8-flash-next"), startup_log=log("v0.32.0.log"))
    )
    assert shape(server) == "mamba:1584*4, ring:8*1, full:1584*1"
    assert (server.source, server.kinds_known, said(server)) == ("startup-log", True, ())
    assert [sized.layers for sized in server.groups] == [12, 12, 12, 1, 12, 13]
    assert found.version == "0.32.0"
    assert found.drafter == Drafter("mtp", 1)
    assert server.provenance["group_block_sizes"] == "v0.32.0.log:6"
    assert [group.cacheable for group in found.expanded()] == [True, True, True, True, False, True]


def test_a_log_alone_gives_sizes_and_says_that_kinds_are_taken_as_usual() -> None:
    server = size_server(SizeSources(startup_log=log("v0.32.0.log")))
    assert shape(server) == "mamba:1584*4, ring:8*1, full:1584*1"
    assert any("taken as full attention" in warning for warning in server.warnings)
    old = size_server(SizeSources(startup_log=log("v0.19.1.log")))
    assert shape(old) == "mamba:528*1, full:528*1"
    assert any("number of groups is not known" in warning for warning in old.warnings)
    assert any("no match unit in 0.19.1" in warning for warning in old.warnings)


def test_the_log_beats_the_config_and_the_difference_is_shown() -> None:
    server = size_server(
        SizeSources(
            flags=ServeFlags(kv_cache_dtype="bfloat16"),
            model_config=config("qwen3.5-27b"),
            startup_log=log("v0.31.0.log"),
        )
    )
    assert shape(server) == "mamba:2848*3, full:2848*1"
    assert said(server) == (
        "the flags say kv_cache_dtype bfloat16, v0.31.0.log:2 says nvfp4: v0.31.0.log:2 is used",
    )
    other = size_server(SizeSources(model_config=config("qwen3.5-4b"), startup_log=log("v0.24.0.log")))
    assert shape(other) == "mamba:2096*3, full:2096*1"
    assert (
        "the start-up log gives blocks 4 x 2,096, the model config with these flags gives 4 x 1,056: "
        "the start-up log is used"
    ) in other.warnings


def test_groups_of_another_number_are_said_to_be_missing_something() -> None:
    lines = ["kv cache group sizes (832, 832, 832, 832, 832)", "Setting attention block size to 832 tokens"]
    server = size_server(SizeSources(model_config=config("qwen3.8-27b"), startup_log=read_startup_log(lines)))
    assert shape(server) == "mamba:832*4, full:832*1"
    assert any("the server has 5 groups, the model config gives 4" in warning for warning in server.warnings)


def test_stated_groups_win_and_are_compared() -> None:
    stated = parse_groups("mamba:528*3,full:528")
    server = size_server(SizeSources(groups=stated, startup_log=log("two-engines.log")))
    assert (server.source, said(server)) == ("flags", ())
    server = size_server(SizeSources(groups=stated, startup_log=log("v0.31.0.log")))
    assert shape(server) == "mamba:528*3, full:528*1"
    assert (
        "--groups gives blocks 4 x 528, the start-up log gives 4 x 2,848: --groups is used" in server.warnings
    )


def test_metrics_between_log_and_config() -> None:
    page = metrics(block_size="8", effective_attention_block_size="1600", prefix_match_unit="16", num_gpu_blocks="1018",
                   mamba_cache_mode="align", enable_prefix_caching="True", mamba_block_size="16")  # fmt: skip
    flags = ServeFlags(num_speculative_tokens=2, speculative_method="mtp")
    server = size_server(SizeSources(flags=flags, model_config=config("qwen3.8-flash-next"), metrics=page))
    assert (shape(server), server.source) == ("mamba:1600*4, ring:8*1, full:1600*1", "metrics")
    assert (server.num_blocks, server.flags.prefix_match_unit) == (1018, 16)
    assert any("mamba_block_size=16 is stale" in warning for warning in server.warnings)
    logged = size_server(SizeSources(startup_log=log("v0.32.0.log"), metrics=page))
    assert logged.source == "startup-log"


def test_block_size_alone_is_never_trusted_as_the_attention_block() -> None:
    page = metrics(block_size="16", mamba_cache_mode="align")
    new = size_server(SizeSources(metrics=page))
    assert any("smallest block of any cached group" in warning for warning in new.warnings)
    flags = ServeFlags(version="0.20", enable_prefix_caching=True)
    old = size_server(SizeSources(flags=flags, metrics=page, model_config=config("qwen3.5-35b-a3b")))
    assert any("may be the size before alignment" in warning for warning in old.warnings)
    assert (shape(old), old.source) == ("mamba:1056*3, full:1056*1", "model-config")


def test_context_parallel_blocks_are_those_of_one_rank() -> None:
    lines = [
        "kv cache group sizes (1024, 2048)",
        "kv lcm block sizes 2048",
        "Padding mamba page size by 1.00%",
    ]
    server = size_server(
        SizeSources(flags=ServeFlags(decode_context_parallel_size=2), startup_log=read_startup_log(lines))
    )
    assert shape(server) == "mamba:1024*1, full:1024*1"


def test_nothing_and_too_little_are_one_clear_line() -> None:
    with pytest.raises(UnusableInputError, match="nothing gives a block size"):
        size_server(SizeSources())
    with pytest.raises(UnusableInputError, match="block sizes alone do not tell what is kept"):
        engine_config_from_sources(SizeSources(groups=parse_groups("1024,32")))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (ServeFlags(tensor_parallel_size=0), "--tensor-parallel-size: .*found 0, wanted 1 or more"),
        (ServeFlags(decode_context_parallel_size=0), "--decode-context-parallel-size: .*wanted 1 to 4,096"),
        (
            ServeFlags(decode_context_parallel_size=10**9),
            "--decode-context-parallel-size: .*found 1000000000",
        ),
        (ServeFlags(num_gpu_blocks=0), "--num-gpu-blocks-override: .*found 0, wanted 2 or more"),
        (ServeFlags(max_num_seqs=0), "--max-num-seqs"),
        (ServeFlags(num_speculative_tokens=-5), "--num-speculative-tokens: .*found -5, wanted 0 or more"),
    ],
)
def test_numbers_that_no_server_runs_with_are_refused(flags: ServeFlags, said: str) -> None:
    with pytest.raises(UnusableInputError, match=said):
        size_server(SizeSources(flags=flags, model_config=config("qwen3.8-flash-next")))


def test_a_number_out_of_range_in_a_log_is_named_by_its_line() -> None:
    lines = (DATA / "logs" / "v0.32.0.log").read_text()
    assert "tensor_parallel_size=1" in lines
    broken = read_startup_log(
        lines.replace("tensor_parallel_size=1", "tensor_parallel_size=0").splitlines(), "server.log"
    )
    with pytest.raises(UnusableInputError, match=r"server\.log:\d+: --tensor-parallel-size: .*found 0"):
        size_server(SizeSources(model_config=config("qwen3.8-flash-next"), startup_log=broken))


def test_an_unusable_config_is_only_a_warning_beside_a_log() -> None:
    broken = ModelConfig.parse({"model_type": "mystery"}, "config.json")
    server = size_server(SizeSources(model_config=broken, startup_log=log("two-engines.log")))
    assert server.warnings[0].startswith("the model config is left aside: config.json")
    with pytest.raises(UnusableInputError, match="mystery"):
        size_server(SizeSources(model_config=broken))


def test_settings_reach_the_engine_config() -> None:
    flags = ServeFlags(
        version="0.33", max_num_batched_tokens=2048, max_num_seqs=8, prefix_match_unit=48, kv_connector="X",
        speculative_method="qwen3_next_mtp", num_speculative_tokens=2, retention_interval=None, retention_given=True,
    )  # fmt: skip
    found = engine_config(size_server(SizeSources(flags=flags, groups=parse_groups("mamba:528*3,full:528"))))
    assert (found.max_num_batched_tokens, found.max_num_seqs, found.match_unit) == (2048, 8, 48)
    assert found.kv_connector and found.drafter == Drafter("mtp", 2)
    assert found.retention_interval is None
    plain = engine_config(size_server(SizeSources(groups=parse_groups("full:16"))))
    assert (plain.retention_interval, plain.max_num_batched_tokens, plain.version) == (0, 8192, "0.33.0")
    old = engine_config(
        size_server(SizeSources(flags=ServeFlags(version="0.28"), groups=parse_groups("full:16")))
    )
    assert old.retention_interval is None


MAMBA = KVCacheGroup("mamba", 832, 10, mode="align")
FULL = KVCacheGroup("full", 832, 4)


@pytest.mark.parametrize(
    ("release", "groups", "length", "settings", "per_request", "tokens", "concurrency", "blocks"),
    [
        # 10 Mamba x (2 + 7 drafts) + 4 full x 5 + one window of 2,048 (6 blocks): the public report names 1,018 blocks.
        ((0, 28), [MAMBA, FULL, KVCacheGroup("sliding_window", 832, window=2048)], 4096,
         {"num_speculative_tokens": 7, "max_num_batched_tokens": 2048}, 116, 35_945, 8.78, 1018),
        # 3 Mamba x (2 + 1) + 6 + 21 blocks of 200: 458 blocks.
        ((0, 28), [KVCacheGroup("mamba", 800, 3, mode="align"), KVCacheGroup("full", 800), KVCacheGroup("full", 200)],
         4096, {"num_speculative_tokens": 1}, 36, 52_110, 12.72, 458),
        ((0, 24), [KVCacheGroup("mamba", 2096, 3, mode="align"), KVCacheGroup("full", 2096)], 131_072, {}, 69,
         567_978, 4.33, 299),
        # Before 0.24: blocks // groups x block, and the concurrency tells them apart.
        ((0, 20), [KVCacheGroup("mamba", 2096, 3, mode="align"), KVCacheGroup("full", 2096)], 8192, {}, 10,
         6_288, 1.50, 15),
        ((0, 28), [KVCacheGroup("full", 16)], 4096, {}, 256, 123_457, 30.14, None),
    ],
)  # fmt: skip
def test_the_pool_behind_a_capacity_line(
    release: tuple[int, int],
    groups: list[KVCacheGroup],
    length: int,
    settings: dict[str, Any],
    per_request: int,
    tokens: int,
    concurrency: float,
    blocks: int | None,
) -> None:
    assert blocks_per_request(groups, length, **settings) == per_request
    assert num_blocks_from_capacity(release, groups, per_request, tokens, length, concurrency) == blocks


def test_a_log_with_its_config_gives_the_pool() -> None:
    server = size_server(SizeSources(model_config=config("qwen3.5-35b-a3b"), startup_log=log("v0.24.0.log")))
    assert server.num_blocks == 299
    old = size_server(SizeSources(model_config=config("qwen3.5-4b"), startup_log=log("v0.19.1.log")))
    assert old.num_blocks == 1184
    exporting = size_server(
        SizeSources(model_config=config("qwen3.5-4b"), startup_log=log("v0.33.0-colours.log"))
    )
    assert exporting.num_blocks == 2200
    assert exporting.warnings == ()
