"""Start-up logs of every release's shape, and what can be wrong with a log."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtune.analyzers.sizing.log_patterns import PATTERNS
from kvtune.analyzers.sizing.startup_log import MAX_LINE_CHARS, StartupLog, read_startup_log
from kvtune.tokenization.errors import UnusableInputError

LOGS = Path(__file__).parents[2] / "data" / "logs"


def read(name: str) -> StartupLog:
    return read_startup_log((LOGS / name).read_text().splitlines(), name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v0.19.1.log", {
            "version": "0.19.1", "model": "Qwen/Qwen3.5-4B", "attention_block_size": 528, "padding_pct": 0.76,
            "mamba_cache_mode": "align", "max_num_batched_tokens": 2048, "kv_cache_tokens": 156_288,
            "max_concurrency": 148.0, "max_model_len": 1024, "enable_prefix_caching": True, "dtype": "bfloat16",
        }),
        ("v0.24.0.log", {
            "version": "0.24.0", "attention_block_size": 2096, "padding_pct": None, "kv_cache_dtype": "fp8",
            "kv_cache_tokens": 567_978, "max_num_seqs": 1, "max_num_batched_tokens": 8192,
        }),
        ("v0.26.0.log", {
            "version": "0.26.0", "attention_block_size": 784, "padding_pct": 0.13, "prefix_match_unit": 16,
            "tensor_parallel_size": 2, "kv_connector": "OffloadingConnector", "group_block_sizes": None,
        }),
        ("v0.28.0.log", {
            "version": "0.28.0", "attention_block_size": 832, "coarse_managers": ("SlidingWindowManager",),
            "kv_cache_tokens": 35_945, "max_concurrency": 8.78, "padding_layers": 3, "padding_layers_pct": 6.25,
            "speculative_method": "dflash", "num_speculative_tokens": 7, "prefix_match_unit": 16,
        }),
        ("v0.30.0.log", {
            "version": "0.30.0", "group_block_sizes": (2848,) * 4, "scheduler_block_size": 2848,
            "kv_cache_dtype": "nvfp4", "no_draft_group": True,
        }),
        ("v0.31.0.log", {"version": "0.31.0", "group_block_sizes": (2848,) * 4, "no_draft_group": None}),
        ("v0.32.0.log", {
            "version": "0.32.0", "group_block_sizes": (1584, 1584, 1584, 1584, 8, 1584),
            "scheduler_block_size": 1584, "speculative_method": "mtp", "num_speculative_tokens": 1,
        }),
        ("v0.33.0-colours.log", {
            "version": "0.33.0", "model": "Qwen/Qwen3.5-4B", "group_block_sizes": (576,) * 4,
            "gdn_prefill_backend": "FlashInfer", "prefix_match_unit": 48, "kv_cache_tokens": 1_092_266,
        }),
        ("v0.33.0-container.log", {"version": "0.33.0", "group_block_sizes": (576,) * 4, "prefix_match_unit": 48}),
        ("cut.log", {"version": "0.19.1", "attention_block_size": 528, "padding_pct": 0.76, "kv_cache_tokens": None}),
    ],
)  # fmt: skip
def test_every_releases_shape(name: str, expected: dict[str, Any]) -> None:
    log = read(name)
    assert {key: log.value(key) for key in expected} == expected
    assert log.starts == 1


def test_each_value_names_its_line() -> None:
    log = read("v0.19.1.log")
    assert log.line_of("attention_block_size") == "v0.19.1.log:5"
    assert log.line_of("kv_cache_tokens") == "v0.19.1.log:8"
    assert read_startup_log(["kv lcm block sizes 528"]).line_of("scheduler_block_size") == "log line 1"


def test_two_engines_are_one_start_and_the_smaller_pool_counts() -> None:
    log = read("two-engines.log")
    assert log.starts == 1
    assert log.processes == ("APIServer", "EngineCore_DP1", "EngineCore_DP0")
    assert (log.value("kv_cache_tokens"), log.value("max_concurrency")) == (480_000, 14.65)
    assert log.warnings == ()


def test_the_last_of_several_starts_is_used_and_said() -> None:
    log = read("two-starts.log")
    assert (log.starts, log.value("version"), log.value("attention_block_size")) == (2, "0.24.0", 2096)
    assert log.warnings == ("the log holds 2 starts: the last one is used",)
    # Facts of the first start do not leak into the second.
    assert log.value("padding_pct") is None and log.value("mamba_cache_mode") is None


def test_a_start_that_was_cut_short_does_not_hide_the_one_before() -> None:
    lines = [
        *(LOGS / "v0.32.0.log").read_text().splitlines(),
        "INFO vLLM server version 0.33.0, serving model m",
    ]
    log = read_startup_log(lines)
    assert (log.value("version"), log.value("scheduler_block_size")) == ("0.32.0", 1584)
    assert log.warnings == ("the log holds 2 starts: the last one that got as far as its sizes is used",)


def test_an_engine_that_starts_again_without_a_banner_is_a_new_start() -> None:
    def engine(block: int) -> list[str]:
        return [
            "(EngineCore pid=7) INFO Initializing a V1 LLM engine (v0.32.0) with config: model='m', dtype=auto",
            f"(EngineCore pid=7) INFO Setting attention block size to {block} tokens to ensure that",
        ]

    log = read_startup_log(engine(528) + engine(1056))
    assert (log.starts, log.value("attention_block_size")) == (2, 1056)


def test_processes_that_disagree_are_a_warning() -> None:
    lines = [
        "(Worker_TP0 pid=1) INFO Setting attention block size to 528 tokens to ensure that",
        "(Worker_TP1 pid=2) INFO Setting attention block size to 544 tokens to ensure that",
    ]
    log = read_startup_log(lines)
    assert log.value("attention_block_size") == 528
    assert log.warnings == (
        "processes disagree about attention_block_size: 528 in line 1 (Worker_TP0) and 544 in line 2 (Worker_TP1); "
        "the first is used",
    )


def test_a_later_size_of_the_same_process_replaces_the_earlier_one() -> None:
    lines = [
        "INFO Setting attention block size to 528 tokens to ensure that attention page size is >= mamba page size.",
        "INFO Setting attention block size to 1056 tokens so the quantized primary KV page covers the padded page.",
    ]
    assert read_startup_log(lines).value("attention_block_size") == 1056


def test_a_refusal_is_read() -> None:
    line = "ValueError: Invalid prefix_match_unit=64; prefix-cacheable KV cache group block sizes must be divisible"
    assert read_startup_log([line]).value("refused_unit") == 64


@pytest.mark.parametrize("text", ["", "INFO server ready\nGET /health 200\n", "{}\n[]"])
def test_no_known_line_is_one_clear_error(text: str) -> None:
    with pytest.raises(
        UnusableInputError, match=r"server\.log: no line of a vLLM start-up log was recognised"
    ) as caught:
        read_startup_log(text.splitlines(), "server.log")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "kv cache group sizes (" + "9" * 5000 + ")",
        "Setting attention block size to " + "1" * 400 + " tokens",
        "GPU KV cache size: ,,,,,, tokens",
        "non-default args: {" + "'a': " * 20_000,
        "vLLM server version " + "x" * 200_000,
    ],
)
def test_hostile_lines_give_nothing_or_something_small(line: str) -> None:
    log = read_startup_log(["kv lcm block sizes 528", line])
    assert log.value("scheduler_block_size") == 528
    assert len(str(log.facts)) < 4_000


def test_what_lies_far_behind_in_a_line_is_not_read() -> None:
    with pytest.raises(UnusableInputError):
        read_startup_log(["x" * MAX_LINE_CHARS + "kv lcm block sizes 528"])


@given(
    st.lists(st.text(max_size=80) | st.sampled_from([pattern.trigger for pattern in PATTERNS]), max_size=8)
)
def test_any_text_is_read_or_refused(lines: list[str]) -> None:
    with suppress(UnusableInputError):
        assert read_startup_log(lines).facts
