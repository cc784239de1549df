"""A vector case as this bookkeeping takes it: engine settings, and requests as paths in one tree of prefixes."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.layout import Drafter, EngineConfig, KVCacheGroup
from kvtune.analyzers.prefix_tree import PrefixPath, build_prefix_tree
from kvtune.analyzers.profiles import ReleaseProfile
from kvtune.tokenization.trace import UInt32

# The vectors' token generator: token i of segment s is (s * _A + i * _B) mod _P.
_A, _B, _P = 1000003, 10007, 50021
_PADDING_SEED = 40000
_DEFAULT_MAX_MODEL_LEN = 131072


def engine_config(case: dict[str, Any], profile: ReleaseProfile) -> EngineConfig:
    """The settings of a `prefix-hits/1` case; absent keys mean what `vectors/README.md` says."""
    config = case["config"]
    eagle = config.get("eagle")
    drafter = None
    if eagle is not None:
        method = eagle.get("method", "eagle")
        if method == "mtp" and eagle.get("modules", 1) > 1:
            method = "multi_module_mtp"
        drafter = Drafter(
            method,
            eagle.get("num_speculative_tokens", 1),
            accept=eagle.get("accept", 0),
            disable_lookahead_block_hashes=eagle.get("disable_lookahead_block_hashes", False),
            disable_eagle_block_drop=eagle.get("disable_eagle_block_drop", False),
        )
    return EngineConfig(
        groups=tuple(_group(group) for group in config["groups"]),
        version=profile.version,
        match_unit=config.get("prefix_match_unit"),
        num_blocks=config["num_blocks"],
        max_num_batched_tokens=config.get("max_num_batched_tokens", 8192),
        max_num_seqs=config.get("max_num_seqs", 16),
        long_prefill_token_threshold=config.get("long_prefill_token_threshold", 0),
        max_model_len=config.get("max_model_len", _DEFAULT_MAX_MODEL_LEN),
        retention_interval=config.get("prefix_cache_retention_interval", profile.default_retention_interval),
        enable_prefix_caching=config.get("enable_prefix_caching", True),
        drafter=drafter,
        mamba_shared_prefix_checkpoint=config.get("enable_mamba_shared_prefix_checkpoint", False),
        hash_algo=config.get("hash_algo", "sha256"),
        scheduling=config.get("scheduler", "sync"),
    )


_SETTINGS: dict[str, set[str]] = {
    "case": {"name", "mode", "config", "requests", "resolved", "error", "expect", "totals"},
    "config": {
        "groups",
        "prefix_match_unit",
        "num_blocks",
        "max_num_batched_tokens",
        "max_num_seqs",
        "max_model_len",
        "long_prefill_token_threshold",
        "prefix_cache_retention_interval",
        "enable_prefix_caching",
        "enable_mamba_shared_prefix_checkpoint",
        "eagle",
        "scheduler",
        "hash_algo",
    },
    "groups": {"type", "block_size", "sliding_window", "mamba_mode", "eagle", "checkpoint_alignment"},
    "eagle": {
        "method",
        "modules",
        "num_speculative_tokens",
        "accept",
        "disable_lookahead_block_hashes",
        "disable_eagle_block_drop",
    },
    "requests": {"prompt", "output", "salt", "lora", "lora_path", "arrive", "skip_reading"},
}
"""What is read of a case."""


def unknown_settings(case: dict[str, Any]) -> list[str]:
    """Settings of a case that nothing here reads, as paths."""
    config = case["config"]
    parts = [
        ("case", [case]),
        ("config", [config]),
        ("groups", config["groups"]),
        ("eagle", [config["eagle"]] if config.get("eagle") else []),
        ("requests", case["requests"]),
    ]
    unknown = {
        f"{name}.{key}"
        for name, values in parts
        for value in values
        for key in value
        if key not in _SETTINGS[name]
    }
    return sorted(unknown)


def _group(group: dict[str, Any]) -> KVCacheGroup:
    kind = group["type"]
    return KVCacheGroup(
        kind,
        group["block_size"],
        window=group.get("sliding_window"),
        mode=group.get("mamba_mode", "align") if kind == "mamba" else None,
        draft=bool(group.get("eagle", False)),
        export_alignment=group.get("checkpoint_alignment"),
        cacheable=kind != "ring",
    )


def case_sequences(case: dict[str, Any], profile: ReleaseProfile, lookahead: int) -> list[Sequence]:
    """The case's requests, their tokens expanded once and forgotten."""
    requests = case["requests"]
    texts: list[UInt32] = []
    shapes: list[tuple[int, int]] = []
    identities: list[object] = []
    for request in requests:
        prompt = expand(request["prompt"])
        output = expand(request.get("output") or [])
        if not len(output):
            output = expand([["seg", _PADDING_SEED, 1]])
        shapes.append((len(prompt), len(output)))
        texts.append(np.concatenate([prompt, output]))
        lora = request.get("lora") or None
        path = request.get("lora_path", lora) if profile.lora_key_has_path else None
        identities.append((request.get("salt") or None, lora, path))  # an empty salt is none
    paths = prefix_paths(texts, identities)
    return [
        Sequence(
            index,
            paths[index],
            prompt,
            output,
            lookahead=lookahead,
            skip_reading=bool(requests[index].get("skip_reading", False)),
        )
        for index, (prompt, output) in enumerate(shapes)
    ]


def prefix_paths(texts: Seq[UInt32], identities: Seq[object]) -> Seq[PrefixPath]:
    """The paths of token sequences; sequences of unequal identity share nothing."""
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    spaces: dict[object, int] = {}
    namespace = np.array(
        [spaces.setdefault(identity, len(spaces)) for identity in identities], dtype=np.int32
    )
    tokens = np.concatenate(texts) if texts else np.zeros(0, dtype=np.uint32)
    return build_prefix_tree(tokens, offsets, namespace).paths


def expand(segments: Seq[Seq[Any]]) -> UInt32:
    """Token ids of a list of segments `["seg", seed, length]` or `["seg", seed, length, start]`."""
    parts = []
    for kind, seed, length, *rest in segments:
        if kind != "seg":
            raise KeyError(kind)
        start = rest[0] if rest else 0
        places = np.arange(start, start + length, dtype=np.int64)
        parts.append(((seed * _A + places * _B) % _P).astype(np.uint32))
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint32)
