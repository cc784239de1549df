"""What people who serve hybrid models ran into, in public threads, and what kvtune answers.

Names carry the number that the collection of cases gives each one.
Categories A to F: the hybrid floor, the last block, checkpoints, block sizes, match units, sliding windows. A case
that is not here is in `NOT_HERE` with its reason. Hits come from replaying prompts of these lengths.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.prefix_tree import build_prefix_tree
from kvtune.analyzers.replay import ReplayInput, replay
from kvtune.analyzers.resolution import Resolution, resolve
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.model_sizes import ModelSizes, size_model
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.analyzers.sizing.sources import SizeSources, size_server
from kvtune.analyzers.sizing.startup_log import read_startup_log
from kvtune.tokenization.errors import UnusableInputError

CONFIGS = Path(__file__).parents[1] / "data" / "models" / "configs"

CASES = """
    K001 K003 K004 K006 K008 K009 K010 K011 K013 K015 K016 K017 K019 K020 K021 K023 K025 K026 K028 K029 K030 K032 K034
    K035 K037 K038 K039 K040 K041 K043 K045 K047 K048 K049 K051 K053 K055 K056 K057 K059 K127 K129 K136
"""
"""Every public case of categories A to F."""

NOT_HERE = {
    "K009": "a census of a production log's prompt lengths: the histogram of `analyze` on that log",
    "K015": "a check of observed cached counts: `validate` compares them with the replay",
    "K016": "wrong output of an offload connector: kvtune does not check answers of a server here",
    "K017": "chunk ends under concurrency: the bookkeeping's own vectors",
    "K020": "pool shares of state snapshots: the capacity curve",
    "K034": "a hit ceiling over an agent's turns: `analyze` on that agent's log",
    "K038": "TPU plugin: aligns by a rule of its own; its log gives the sizes (--startup-log)",
    "K039": "Ascend plugin: sizes blocks by a rule of its own; its log gives the sizes (--startup-log)",
    "K051": "a defect of builds between releases: `validate` compares answers",
    "K053": "another engine's stage cache, with one group: the single-group rule",
    "K056": "memory of blocks outside the window: the capacity curve",
    "K136": "wording of `explain`",
}


def model(name: str, **flags: Any) -> ModelSizes:
    config = ModelConfig.parse(json.loads((CONFIGS / name / "config.json").read_bytes()), name)
    return size_model(config, ServeFlags(**flags))


def document(spec: str, units: list[int] | None = None, **flags: Any) -> Resolution:
    return resolve(
        size_server(SizeSources(flags=ServeFlags(**flags), groups=parse_groups(spec))), units=units
    )


def hits(config: EngineConfig, prompts: Sequence[tuple[int, int]]) -> list[int]:
    """Hit tokens of prompts (common tokens with the first, length), one after another."""
    tokens = [
        [
            *range(1, min(common, length) + 1),
            *range(10**6 * (index + 1), 10**6 * (index + 1) + max(length - common, 0)),
        ]
        for index, (common, length) in enumerate(prompts)
    ]
    offsets = np.cumsum([0, *map(len, tokens)])
    tree = build_prefix_tree(
        np.array([token for prompt in tokens for token in prompt], dtype=np.uint32),
        offsets,
        np.zeros(len(prompts), dtype=np.int32),
    )
    lengths = np.diff(offsets)
    found = replay(config, ReplayInput(tree.paths, lengths, np.ones_like(lengths)), check=True)
    return [int(hit) for hit in found.hit_tokens]


def resend(block: int, length: int, **settings: Any) -> list[int]:
    """The same prompt three times on a hybrid with this block."""
    config = replace(EngineConfig(parse_groups(f"mamba:{block}*3,full:{block}")), **settings)
    return hits(config, [(length, length)] * 3)


class TestHybridFloor:
    def test_k001_k003_prompts_below_one_block_never_hit(self) -> None:
        assert (
            model("qwen3.5-4b", version="0.19.1", enable_prefix_caching=True).block.attention_block_size
            == 528
        )
        # The first resend plants nothing new: a prompt's own state is kept where its chunk ended.
        assert resend(528, 480)[1:] == [0, 0]
        assert resend(528, 552)[1:] == [528, 528]
        assert resend(528, 979)[1:] == [528, 528]
        assert document("mamba:528*3,full:528").minimum_reusable_prefix == 529

    def test_k003_a_finer_unit_reaches_below_the_block(self) -> None:
        assert model("qwen3.5-35b-a3b", version="0.26").block.attention_block_size == 1056
        prompts = [(561, 561), (561, 700)]
        groups = parse_groups("mamba:1056*3,full:1056")
        assert hits(EngineConfig(groups), prompts) == [0, 0]
        assert hits(EngineConfig(groups, match_unit=16), prompts) == [0, 560]
        assert hits(EngineConfig(groups, match_unit=48), prompts) == [0, 528]

    def test_k004_a_shared_system_prompt_below_the_block_gives_nothing(self) -> None:
        prompts = [(240, 300 + 7 * index) for index in range(8)]
        assert sum(hits(EngineConfig(parse_groups("mamba:784*3,full:784")), prompts)) == 0
        # An engine with plain blocks of 16 reuses the whole prefix: 240 of about 325 tokens.
        shared = sum(hits(EngineConfig(parse_groups("full:16")), prompts))
        assert shared == 7 * 240

    def test_k006_max_model_len_below_the_block_is_a_finding_by_name(self) -> None:
        flags = ServeFlags(kv_cache_dtype="fp8", max_model_len=4096)
        config = ModelConfig.parse(
            json.loads((CONFIGS / "nemotron-3-super-120b-a12b" / "config.json").read_bytes())
        )
        found = resolve(size_server(SizeSources(flags=flags, model_config=config)))
        assert found.attention_block_size == 8320
        assert "max_model_len_below_block" in {finding.name for finding in found.findings}
        longer = resolve(
            size_server(SizeSources(flags=replace(flags, max_model_len=16_384), model_config=config))
        )
        assert "max_model_len_below_block" not in {finding.name for finding in longer.findings}

    def test_k008_a_prefix_of_1590_hits_exactly_one_block_of_1568(self) -> None:
        assert model("qwen3.5-27b", kv_cache_dtype="fp8").block.attention_block_size == 1568
        prompts = [(1590, 1900), (1590, 2000), (1590, 2100)]
        assert hits(EngineConfig(parse_groups("mamba:1568*3,full:1568")), prompts) == [0, 1568, 1568]
        assert resend(1568, 1568)[1:] == [0, 0]

    def test_k010_the_smallest_block_is_not_the_one_that_bounds_reuse(self) -> None:
        found = model("qwen3.8-flash-next", num_speculative_tokens=2, speculative_method="mtp")
        assert [sized.group.block_size for sized in found.groups] == [1600, 1600, 1600, 1600, 8, 1600]
        shown = document("mamba:1600*4,full:8:cacheable=no,full:1600")
        assert (shown.scheduler_block_size, shown.hash_block_size, shown.minimum_reusable_prefix) == (
            1600,
            1600,
            1601,
        )


class TestLastBlock:
    @pytest.mark.parametrize(("length", "hit"), [(1024, 0), (1025, 1024), (2047, 1024), (4096, 3072)])
    def test_k011_a_hit_leaves_the_last_token(self, length: int, hit: int) -> None:
        assert resend(1024, length)[2] == hit

    @pytest.mark.parametrize(
        ("drafts", "dtype", "block", "padding"),
        [
            (15, "auto", 480, 1.27),
            (7, "auto", 448, 3.23),
            (7, "int8_per_token_head", 864, 1.09),
            (3, "fp8", 832, 0.48),
        ],
    )
    def test_k013_draft_tokens_move_the_block(
        self, drafts: int, dtype: str, block: int, padding: float
    ) -> None:
        found = model(
            "qwen3.8-27b",
            num_speculative_tokens=drafts,
            kv_cache_dtype=dtype,
            mamba_ssm_cache_dtype="bfloat16",
        )
        assert (found.block.attention_block_size, found.block.padding_pct) == (block, padding)
        assert found.block.mamba_page_bytes == 1_634_304 + 20_480 * drafts


class TestCheckpoints:
    def test_k019_equal_blocks_without_a_kept_state_give_nothing(self) -> None:
        """Two prompts share five blocks and part; the first was one chunk, so no state lies where they part."""
        config = EngineConfig(parse_groups("mamba:528*3,full:528"))
        prompts = [(2640, 2640 + 600), (2640, 2640 + 700), (2640, 2640 + 800)]
        first, second, third = hits(config, prompts)
        assert (first, second) == (0, 0)
        assert third == 2640  # the second planted the state where they part

    def test_k021_a_retention_interval_is_a_multiple_of_the_block(self) -> None:
        refused = document("mamba:832*3,full:832", retention_interval=1000, retention_given=True)
        assert refused.error is not None and "multiple of the scheduler block (832)" in refused.error
        assert document("mamba:832*3,full:832", retention_interval=1664, retention_given=True).error is None

    def test_k023_a_budget_below_the_block_is_refused_or_named(self) -> None:
        old = document("mamba:2096*3,full:2096", max_num_batched_tokens=2048, version="0.26")
        assert old.error is not None and "2096" in old.error
        new = document("mamba:2096*3,full:2096", max_num_batched_tokens=2048)
        assert "step_budget_below_block" in {finding.name for finding in new.findings}

    def test_k025_the_effective_prefill_step_is_named(self) -> None:
        found = document("mamba:1568*3,full:1568", max_num_batched_tokens=2048)
        (text,) = [one.text for one in found.findings if one.name == "step_budget_not_multiple"]
        assert "1,568 of the budget's 2,048" in text and "never prefill together" in text


class TestBlockSize:
    def test_k028_the_same_block_with_falling_padding(self) -> None:
        found = [
            model("glm-5.3-flash", tensor_parallel_size=4, num_speculative_tokens=k).block
            for k in (0, 2, 3, 5)
        ]
        assert [block.attention_block_size for block in found] == [1152] * 4
        assert [block.padding_pct for block in found] == [8.68, 6.27, 5.11, 2.86]

    def test_k029_nemotron_nano_9b(self) -> None:
        found = model("nemotron-nano-9b-v2", mamba_ssm_cache_dtype="bfloat16").block
        assert (found.attention_block_size, found.padding_pct) == (672, 2.13)

    def test_k030_both_kernels_are_shown_where_the_backend_is_not_known(self) -> None:
        rows = {
            row.flag: row.attention_block_size
            for row in resolve(
                size_server(
                    SizeSources(
                        model_config=ModelConfig.parse(
                            json.loads((CONFIGS / "qwen3.5-9b" / "config.json").read_bytes())
                        )
                    )
                )
            ).what_if
            if row.what == "attention backend"
        }
        assert rows == {"FLASH_ATTN (16-token kernels)": 528, "XPU_FLASH_ATTN (64-token kernels)": 576}

    def test_k032_quantising_the_kv_cache_makes_reuse_coarser(self) -> None:
        blocks = [
            model("qwen3.5-9b", kv_cache_dtype=dtype).block.attention_block_size for dtype in ("auto", "fp8")
        ]
        assert blocks == [528, 1056]

    def test_k035_kernel_block_group_block_and_hash_unit_are_three_things(self) -> None:
        """TP 16, FLASHINFER_MLA (kernel block 32), fp8 KV and seven drafts give the logged 768 and 0.70%."""
        found = model(
            "kimi-k3",
            tensor_parallel_size=16,
            kv_cache_dtype="fp8",
            num_speculative_tokens=7,
            attention_backend="FLASHINFER_MLA",
        )
        assert (found.block.attention_block_size, found.block.padding_pct) == (768, 0.7)

    def test_k037_a_block_that_is_no_power_of_two_is_no_error(self) -> None:
        found = document("mamba:544*3,full:544")
        assert found.error is None
        assert [row.unit for row in found.candidates][:4] == [544, 272, 136, 68]

    def test_k026_k040_pages_that_cannot_be_made_equal_are_named(self) -> None:
        """A latent page that does not divide the state's page cannot grow by whole rows (grouping's own rule)."""
        from kvtune.analyzers.sizing.grouping import LayerSpec, group_layers

        target = LayerSpec("mamba", 7808, 1024 * 7808, ("state",))
        draft = LayerSpec("full", 16, 1000 * 16, ("latent",), latent=True)
        with pytest.raises(UnusableInputError, match="cannot give all layers one page size"):
            group_layers([target, draft])

    def test_k127_mode_all_rounds_to_the_kernels_chunk(self) -> None:
        blocks = [
            model(
                "granite-4.0-h-tiny", version=version, enable_prefix_caching=True
            ).block.attention_block_size
            for version in ("0.27", "0.28")
        ]
        assert blocks == [512, 400]

    def test_k129_short_convolutions_leave_the_block_alone(self) -> None:
        assert [sized.group.block_size for sized in model("lfm2-1.2b").groups] == [16, 16, 16]


class TestMatchUnit:
    @pytest.mark.parametrize(
        ("block", "unit", "hit"), [(1056, None, 9504), (2096, None, 8384), (1056, 16, 9984)]
    )
    def test_k041_a_resend_with_a_longer_tail(self, block: int, unit: int | None, hit: int) -> None:
        config = EngineConfig(parse_groups(f"mamba:{block}*3,full:{block}"), match_unit=unit)
        assert hits(config, [(10_000, 10_000), (10_000, 10_200)])[1] == hit

    def test_k043_an_unset_unit_is_the_gcd_not_the_workers_block(self) -> None:
        assert document("full:512,mamba:1024").hash_block_size == 512

    def test_k045_a_window_switches_the_unit_off_and_the_log_says_so(self) -> None:
        groups = "mamba:832*10,full:832*4,swa:832:window=2048"
        found = document(groups, [16], prefix_match_unit=16)
        assert (found.hash_block_size, found.cache_hit_alignment) == (16, 832)
        assert "unit_disabled_by_coarse_group" in {finding.name for finding in found.findings}
        warning = (
            "WARNING Disabling fine-grained prefix-cache hits because these KV cache managers require "
            "block-aligned lookups: SlidingWindowManager."
        )
        log = read_startup_log([warning])
        assert log.value("coarse_managers") == ("SlidingWindowManager",)

    def test_k047_valid_units_divide_the_smallest_block(self) -> None:
        rows = {row.unit: row for row in document("full:128,mamba:768*3", [768, 128, 64]).candidates}
        assert [unit for unit, row in rows.items() if row.valid] == [128, 64]
        assert rows[768].reason == "does not divide group 0 (full, block 128)"

    def test_k048_a_ring_constrains_nothing_and_is_named_beside_a_connector(self) -> None:
        found = document(
            "mamba:1600*4,full:4:cacheable=no,full:1600", prefix_match_unit=16, kv_connector="Offloading"
        )
        assert found.hash_block_size == 16
        (text,) = [one.text for one in found.findings if one.name == "connector_with_finer_unit"]
        assert "Groups of 4 tokens do not divide by it" in text

    def test_k049_a_unit_above_the_windows_block_is_struck(self) -> None:
        rows = {row.unit: row.valid for row in document("full:128,swa:32:window=4096", [128, 32]).candidates}
        assert rows == {128: False, 32: True}


class TestSlidingWindow:
    def test_k055_a_hit_needs_the_whole_window_before_the_boundary(self) -> None:
        """Full 32, window 1,024 in blocks of 16: of a prompt of 4,000 the window before 3,968 is kept, no more.

        A prompt edited just below 3,968 would need the window before 3,936, whose first blocks are gone.
        """
        config = EngineConfig(parse_groups("swa:16*5:window=1024,full:32"))
        assert hits(config, [(4000, 4000), (3970, 4000)]) == [0, 3968]
        assert hits(config, [(4000, 4000), (3960, 4000)]) == [0, 0]

    def test_k057_the_hash_unit_is_the_smallest_group(self) -> None:
        rows = document("full:256*3,swa:64:window=4096,full:4*2,full:8")
        assert (rows.scheduler_block_size, rows.hash_block_size) == (256, 4)

    def test_k059_a_prefix_of_64k_is_reused_at_the_scheduler_block(self) -> None:
        config = EngineConfig(parse_groups("full:128"))
        assert hits(config, [(65_536, 70_000), (65_536, 71_000)]) == [0, 65_536]


def test_every_case_is_here_or_left_out_by_name() -> None:
    names = " ".join(name for cls in CLASSES for name in vars(cls) if name.startswith("test_"))
    here = {number.upper() for number in re.findall(r"k\d{3}", names)}
    assert here | set(NOT_HERE) == set(CASES.split())
    assert here.isdisjoint(NOT_HERE)


CLASSES = (TestHybridFloor, TestLastBlock, TestCheckpoints, TestBlockSize, TestMatchUnit, TestSlidingWindow)
