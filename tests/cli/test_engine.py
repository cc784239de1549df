"""From options to the server's settings: every syntax, and one-line errors that name the option."""

from __future__ import annotations

import pytest

from kvtune.analyzers.layout import Drafter
from kvtune.cli.analysis_options import EngineOptions, SizeOptions
from kvtune.cli.engine import duration_of, server_of, units_of
from kvtune.tokenization.errors import UnusableInputError

GROUPS = "mamba:528*3,full:528"


def server(groups: str | None = GROUPS, **options: object):
    return server_of(EngineOptions(**options), SizeOptions(groups=groups), None)


def test_defaults() -> None:
    found = server()
    assert found.size_source == "flags"
    assert [(group.kind, group.block_size, group.count) for group in found.config.groups] == [
        ("mamba", 528, 3),
        ("full", 528, 1),
    ]
    config = found.config
    assert (config.match_unit, config.num_blocks, config.retention_interval) == (None, None, 0)
    assert (config.max_num_batched_tokens, config.max_num_seqs, config.enable_prefix_caching) == (
        8192,
        256,
        True,
    )
    assert config.drafter is None
    assert found.assumed == ()


def test_what_the_engine_would_refuse_is_refused_here_with_a_way_out() -> None:
    with pytest.raises(UnusableInputError) as refused:
        server(match_unit="64")
    assert str(refused.value).startswith(
        "the engine refuses to start: match unit 64 does not divide the block of"
    )
    assert str(refused.value).endswith("; `kvtune resolve` shows its sizes and the units that it takes")


def test_every_option_reaches_the_settings() -> None:
    config = server(
        engine_version="0.30",
        match_unit="48",
        num_blocks="5000",
        max_num_batched_tokens=2048,
        max_num_seqs=8,
        long_prefill_token_threshold=512,
        max_model_len=32768,
        retention_interval="none",
        draft="eagle:3",
        state_export=16,
        dcp=2,
        hash_algo="xxhash",
        no_prefix_caching=True,
        kv_connector=True,
    ).config
    assert config.version.startswith("0.30")
    assert (config.match_unit, config.num_blocks) == (48, 5000)
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (2048, 8)
    assert (config.long_prefill_token_threshold, config.max_model_len) == (512, 32768)
    assert config.retention_interval is None
    assert config.drafter == Drafter(method="eagle", num_speculative_tokens=3)
    assert [group.export_alignment for group in config.groups] == [16, None]
    assert (config.decode_context_parallel_size, config.hash_algo) == (2, "xxhash")
    assert (config.enable_prefix_caching, config.kv_connector) == (False, True)


def test_a_bounded_pool_is_no_caveat() -> None:
    assert server(num_blocks="5000").assumed == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"match_unit": "0"}, "--match-unit"),
        ({"match_unit": "none"}, "--match-unit"),
        ({"match_unit": "٣"}, "--match-unit"),
        ({"num_blocks": "1"}, "--num-blocks"),
        ({"retention_interval": "-1"}, "--retention-interval"),
        ({"draft": "eagle"}, "--draft"),
        ({"draft": "eagle:0"}, "--draft"),
        ({"draft": ":3"}, "--draft"),
        ({"engine_version": "0.20"}, "0.26"),
        ({"engine_version": "newest"}, "version"),
        ({"groups": "full"}, "--groups"),
        ({"groups": "1024,32"}, "the kind of each group"),
        ({"groups": None}, "--groups"),
    ],
)
def test_unusable_options_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(UnusableInputError) as caught:
        server(**options)
    assert words in str(caught.value)


def test_units() -> None:
    assert units_of("auto") is None
    assert units_of("16, 48,96") == (16, 48, 96)
    for text in ("", "16,", "a", "0", "16;48", "-8"):
        with pytest.raises(UnusableInputError, match="--units"):
            units_of(text)


def test_durations() -> None:
    assert duration_of(None) is None
    assert [duration_of(text) for text in ("90s", "1.5h", "2d", "30m", "12")] == [90, 5400, 172_800, 1800, 12]
    for text in ("", "h", "-1h", "nan", "inf", "1w"):
        with pytest.raises(UnusableInputError, match="--window"):
            duration_of(text)
