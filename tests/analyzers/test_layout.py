"""The syntax of `--groups`."""

from __future__ import annotations

import pytest

from kvtune.analyzers.layout import EngineConfig, KVCacheGroup, parse_groups
from kvtune.tokenization.errors import UnusableInputError


def test_runs_of_like_groups_in_the_engine_s_order() -> None:
    groups = parse_groups("mamba:528*3, full:528")
    assert groups == (KVCacheGroup("mamba", 528, 3, mode="align"), KVCacheGroup("full", 528))
    expanded = EngineConfig(groups=groups).expanded()
    assert [(group.kind, group.count) for group in expanded] == [("mamba", 1)] * 3 + [("full", 1)]


@pytest.mark.parametrize(
    ("spec", "group"),
    [
        ("swa:32:window=4096", KVCacheGroup("sliding_window", 32, window=4096)),
        ("swa:32:window=4096*5", KVCacheGroup("sliding_window", 32, 5, window=4096)),
        ("swa:32*5:window=4096", KVCacheGroup("sliding_window", 32, 5, window=4096)),
        ("chunked:16:window=8192", KVCacheGroup("chunked_local", 16, window=8192)),
        ("mamba:1056:mode=all", KVCacheGroup("mamba", 1056, mode="all")),
        ("mamba:1056:export=64", KVCacheGroup("mamba", 1056, mode="align", export_alignment=64)),
        ("full:64:compress=4:draft", KVCacheGroup("full", 64, tokens_per_state=4, draft=True)),
        ("full:8:cacheable=no", KVCacheGroup("full", 8, cacheable=False)),
        ("1024", KVCacheGroup("unspecified", 1024)),
        ("1024*2", KVCacheGroup("unspecified", 1024, 2)),
    ],
)
def test_one_entry(spec: str, group: KVCacheGroup) -> None:
    assert parse_groups(spec) == (group,)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("", "unknown kind of group ''"),
        ("full:16,", "unknown kind of group ''"),
        ("gdn:16", "unknown kind of group 'gdn'"),
        ("full", "no block size"),
        ("full:0", "the block size is no positive number"),
        ("full:-16", "the block size is no positive number"),
        ("full:1e3", "the block size is no positive number"),
        ("full:\u0663", "the block size is no positive number"),
        ("full:99999999999999999999", "the block size is no positive number"),
        ("mamba:16*0", "the count is no positive number"),
        ("mamba:16*", "the count is no positive number"),
        ("swa:16", "no window=W"),
        ("swa:16:window=x", "the window is no positive number"),
        ("full:16:window=4", "'window=4' is no modifier of a full group"),
        ("full:16:export=4", "'export=4' is no modifier of a full group"),
        ("mamba:16:mode=dense", "'mode=dense' is no modifier of a mamba group"),
        ("full:16*300", "more than 256 groups"),
    ],
)
def test_what_is_wrong_is_said(spec: str, problem: str) -> None:
    with pytest.raises(UnusableInputError, match="--groups: ") as error:
        parse_groups(spec)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)
