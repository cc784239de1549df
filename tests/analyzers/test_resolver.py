"""Sizes, hit grids, refusals and drafters by hand; the grids of the vectors check the rest."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest

import kvtune.analyzers
from kvtune.analyzers.layout import Drafter, EngineConfig, KVCacheGroup, parse_groups
from kvtune.analyzers.profiles import NEWEST, PROFILES, ReleaseProfile, UnknownReleaseError, profile_for
from kvtune.analyzers.refusal import EngineRefusal
from kvtune.analyzers.resolver import ResolvedSizes, resolve_sizes

HYBRID = EngineConfig(groups=parse_groups("mamba:528*3,full:528"))


def sizes(groups: str, release: str = "0.33", **settings: object) -> ResolvedSizes:
    return resolve_sizes(EngineConfig(groups=parse_groups(groups), **settings), PROFILES[release])  # type: ignore[arg-type]


class TestGrid:
    def test_equal_blocks_without_a_unit(self) -> None:
        found = sizes("mamba:528*3,full:528")
        assert (found.scheduler_block_size, found.hash_block_size, found.cache_hit_alignment) == (
            528,
            528,
            528,
        )
        assert not found.partial_hits
        assert found.minimum_reusable_prefix == 529

    def test_a_unit_turns_partial_hits_on(self) -> None:
        found = sizes("mamba:528*3,full:528", match_unit=16)
        assert (found.cache_hit_alignment, found.partial_hits, found.minimum_reusable_prefix) == (
            16,
            True,
            17,
        )

    def test_unequal_blocks_have_them_without_a_flag(self) -> None:
        found = sizes("full:512,mamba:1024")
        assert (found.scheduler_block_size, found.hash_block_size, found.partial_hits) == (1024, 512, True)
        assert found.min_block_size == 512

    def test_without_mamba_there_are_none(self) -> None:
        found = sizes("full:32,swa:16:window=256", match_unit=8)
        assert (found.cache_hit_alignment, found.hash_block_size, found.partial_hits) == (32, 8, False)

    def test_a_sliding_window_turns_them_off_for_the_whole_model(self) -> None:
        found = sizes("full:64,mamba:64,swa:64:window=128", match_unit=16)
        assert (found.cache_hit_alignment, found.partial_hits) == (64, False)
        assert any("sliding_window 64" in warning for warning in found.warnings)

    def test_unless_its_block_is_the_unit(self) -> None:
        assert sizes("full:64,mamba:64,swa:16:window=128", match_unit=16).partial_hits

    def test_context_parallelism_multiplies_attention_blocks(self) -> None:
        found = sizes("full:528,mamba:528", decode_context_parallel_size=2)
        assert found.group_block_sizes == (1056, 528)
        assert (found.scheduler_block_size, found.cache_hit_alignment, found.partial_hits) == (
            1056,
            528,
            True,
        )

    def test_uncacheable_groups_do_not_constrain_the_unit(self) -> None:
        found = sizes("mamba:528,full:528,full:8:cacheable=no", match_unit=48)
        assert (found.scheduler_block_size, found.hash_block_size) == (528, 48)
        with pytest.raises(EngineRefusal, match="does not divide"):
            sizes("mamba:528,full:528,full:8:cacheable=no", "0.28", match_unit=48)


class TestRefusals:
    @pytest.mark.parametrize(
        ("groups", "settings", "kind", "rule"),
        [
            ("mamba:528,full:528", {"match_unit": 64}, "ValueError", "unit_does_not_divide"),
            ("full:16", {"match_unit": 8}, "ValueError", "unit_on_single_group"),
            ("mamba:528,full:528", {"match_unit": 0}, "ValidationError", "unit_not_positive"),
            ("full:64:compress=128,mamba:64", {"match_unit": 16}, "ValueError", "compression_misaligned"),
            ("mamba:528,full:528", {"retention_interval": 100}, "ValueError", "retention_not_multiple"),
            ("full:16", {"retention_interval": 16}, "ValueError", "retention_without_sparse_group"),
            ("mamba:64:mode=none,full:64", {}, "AssertionError", "mamba_mode_not_align"),
            (
                "full:64,swa:64:window=9",
                {"decode_context_parallel_size": 2},
                "AssertionError",
                "kind_not_under_dcp",
            ),
            (
                "full:2,mamba:2",
                {"drafter": Drafter("multi_module_mtp", 3)},
                "ValueError",
                "draft_window_exceeds_block",
            ),
            ("full:64,chunked:32:window=64", {}, "AssertionError", "chunked_local_block"),
            (
                "full:32:draft,chunked:32:window=64:draft",
                {"drafter": Drafter("eagle", 1, disable_lookahead_block_hashes=True)},
                "AssertionError",
                "chunked_local_with_drop",
            ),
        ],
    )
    def test_what_the_engine_would_say(
        self, groups: str, settings: dict[str, object], kind: str, rule: str
    ) -> None:
        if "draft_window" in rule:
            groups = groups.replace("full:2", "full:2:draft")
        with pytest.raises(EngineRefusal) as refusal:
            sizes(groups, **settings)
        assert (refusal.value.type, refusal.value.rule) == (kind, rule)
        assert "\n" not in str(refusal.value)

    def test_a_refused_unit_names_the_group(self) -> None:
        with pytest.raises(EngineRefusal, match=r"group 1 \(unspecified, 32\)"):
            sizes("1024,32", match_unit=48)

    @pytest.mark.parametrize(
        ("release", "rule"), [("0.26", "block_exceeds_budget"), ("0.28", None), ("0.33", None)]
    )
    def test_a_block_wider_than_the_budget(self, release: str, rule: str | None) -> None:
        settings = {"max_num_batched_tokens": 256, "retention_interval": None}
        if rule is None:
            assert any(
                "below the block" in text
                for text in sizes("mamba:528,full:528", release, **settings).warnings
            )
            return
        with pytest.raises(EngineRefusal) as refusal:
            sizes("mamba:528,full:528", release, **settings)
        assert refusal.value.rule == rule

    @pytest.mark.parametrize(("release", "refused"), [("0.31", False), ("0.32", True)])
    def test_mode_all_is_gone(self, release: str, refused: bool) -> None:
        if not refused:
            assert sizes("mamba:64:mode=all,full:64", release).hash_block_size == 64
            return
        with pytest.raises(EngineRefusal) as refusal:
            sizes("mamba:64:mode=all,full:64", release)
        assert refusal.value.rule == "no_such_mamba_mode"

    def test_uneven_hybrids_did_not_start_in_0_26(self) -> None:
        with pytest.raises(EngineRefusal) as refusal:
            sizes("full:16,mamba:64", "0.26", retention_interval=None)
        assert refusal.value.rule == "block_not_multiple_of_hash_unit"
        assert sizes("full:16,mamba:64", "0.28", retention_interval=None).scheduler_block_size == 64


class TestIgnored:
    def test_a_unit_on_one_group_was_ignored_until_0_31(self) -> None:
        found = sizes("full:64", "0.31", match_unit=16)
        assert (found.cache_hit_alignment, found.hash_block_size) == (64, 64)
        assert "ignored" in found.warnings[0]

    def test_a_unit_without_caching(self) -> None:
        found = sizes("full:64,full:32", match_unit=7, enable_prefix_caching=False)
        assert found.hash_block_size == 64
        assert "caching is off" in found.warnings[0]


class TestDrafters:
    @pytest.mark.parametrize(
        ("drafter", "release", "connector", "lookahead", "drop"),
        [
            (Drafter("mtp", 3), "0.33", False, 1, False),
            (Drafter("multi_module_mtp", 3), "0.33", False, 3, False),
            (Drafter("eagle3", 1), "0.33", True, 0, True),
            (Drafter("eagle", 1, disable_lookahead_block_hashes=True), "0.33", False, 0, True),
            (Drafter("eagle", 1, disable_eagle_block_drop=True), "0.33", False, 0, False),
            (Drafter("mtp", 1), "0.32", False, 0, True),
            (Drafter("dflash", 4), "0.33", False, 0, False),
            (Drafter("ngram", 4), "0.33", False, 0, False),
        ],
    )
    def test_lookahead_or_drop(
        self, drafter: Drafter, release: str, connector: bool, lookahead: int, drop: bool
    ) -> None:
        config = replace(HYBRID, drafter=drafter, kv_connector=connector)
        found = resolve_sizes(config, PROFILES[release])
        assert (found.hash_lookahead_tokens, found.eagle_block_drop) == (lookahead, drop)
        assert found.dropping_groups == (frozenset(range(4)) if drop else frozenset())

    def test_only_the_flagged_groups_drop(self) -> None:
        config = EngineConfig(
            groups=(KVCacheGroup("mamba", 528, 3, mode="align"), KVCacheGroup("full", 528, draft=True)),
            drafter=Drafter("mtp", 1, disable_lookahead_block_hashes=True),
        )
        assert resolve_sizes(config, NEWEST).dropping_groups == {3}

    def test_slots_past_the_scheduled_tokens(self) -> None:
        slots = {
            method: resolve_sizes(replace(HYBRID, drafter=Drafter(method, 3)), NEWEST).slot_lookahead_tokens
            for method in ("mtp", "dflash", "draft_model", "ngram")
        }
        assert slots == {"mtp": 3, "dflash": 4, "draft_model": 3, "ngram": 0}

    def test_an_option_that_a_release_lacks(self) -> None:
        with pytest.raises(EngineRefusal, match="cannot switch the block drop off"):
            resolve_sizes(
                replace(HYBRID, drafter=Drafter("mtp", 1, disable_eagle_block_drop=True)), PROFILES["0.28"]
            )
        with pytest.raises(EngineRefusal, match="exports no states"):
            sizes("mamba:64:export=1,full:64", "0.28")


class TestProfiles:
    def test_every_release_from_the_first_with_a_unit(self) -> None:
        assert list(PROFILES) == ["0.33", "0.32", "0.31", "0.30", "0.29", "0.28", "0.27", "0.26"]

    @pytest.mark.parametrize(
        "version", ["0.32", "0.32.0", "v0.32.1", "0.32.0rc1", " 0.32.0+cu129 ", "0.32.1.dev3"]
    )
    def test_versions_as_people_write_them(self, version: str) -> None:
        assert profile_for(version).profile is PROFILES["0.32"]

    def test_the_newest_is_the_default_and_speaks_for_newer_ones(self) -> None:
        assert (profile_for(None).profile, profile_for(None).caveat) == (NEWEST, None)
        newer = profile_for("0.41.2")
        assert newer.profile is NEWEST
        assert newer.caveat is not None
        assert "0.41.2" in newer.caveat

    def test_older_releases_have_no_unit(self) -> None:
        with pytest.raises(UnknownReleaseError, match="no match unit in this release"):
            profile_for("0.25.1")

    @pytest.mark.parametrize("version", ["latest", "", "33", "0.x", "0.33; rm -rf /"])
    def test_what_is_no_version(self, version: str) -> None:
        with pytest.raises(UnknownReleaseError, match="not a vLLM version"):
            profile_for(version)

    def test_each_release_differs_from_the_next(self) -> None:
        names = {field.name for field in fields(ReleaseProfile)} - {"version"}
        for newer, older in pairwise(PROFILES.values()):
            # Nothing is known by which 0.27 differs from 0.28 here.
            assert newer.version == "0.28.0" or any(
                getattr(newer, name) != getattr(older, name) for name in names
            )

    def test_every_rule_is_used(self) -> None:
        """A rule that no code asks for would be a claim without a test."""
        code = "".join(path.read_text() for path in Path(kvtune.analyzers.__path__[0]).rglob("*.py"))
        unused = [field.name for field in fields(ReleaseProfile) if f"profile.{field.name}" not in code]
        assert unused == ["retention_option"]  # the profile's own retention_setting() asks for it
