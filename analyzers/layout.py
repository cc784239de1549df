"""KV cache groups and the engine settings that decide reuse: what is given, nothing that is resolved from it.

Sizes are tokens per physical block and rank. The order of groups is the engine's own and matters: it decides
which block is evicted first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["full", "sliding_window", "chunked_local", "mamba"]
MambaMode = Literal["align", "none", "all"]


@dataclass(frozen=True)
class KVCacheGroup:
    """One KV cache group (or `count` like ones in a row).

    Attributes:
        block_size: tokens in one physical block of one rank.
        window: sliding window in tokens, or the chunk of chunked local attention.
        mode: Mamba cache mode; None for other kinds.
        tokens_per_state: per-state compression (1: none).
        cacheable: whether prefix caching applies (circular buffers are not cacheable).
        draft: holds draft layers (the engine's `is_eagle_group`).
        export_alignment: the backend can export a state from inside a chunk at offsets of this alignment.
    """

    kind: Kind
    block_size: int
    count: int = 1
    window: int | None = None
    mode: MambaMode | None = None
    tokens_per_state: int = 1
    cacheable: bool = True
    draft: bool = False
    export_alignment: int | None = None


@dataclass(frozen=True)
class Drafter:
    """Speculative decoding as far as prefix caching sees it."""

    method: str
    num_speculative_tokens: int
    accept: int = 0
    disable_lookahead_block_hashes: bool = False
    disable_eagle_block_drop: bool = False


@dataclass(frozen=True)
class EngineConfig:
    """The settings of one server. Token counts unless the name says otherwise.

    `num_blocks` counts the null block, as the engine's `num_gpu_blocks` does; None is unlimited.
    `retention_interval` None is dense; 0 keeps what is always kept.
    """

    groups: tuple[KVCacheGroup, ...]
    version: str = "0.33.0"
    match_unit: int | None = None
    num_blocks: int | None = None
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    long_prefill_token_threshold: int = 0
    max_model_len: int | None = None
    retention_interval: int | None = 0
    enable_prefix_caching: bool = True
    kv_connector: bool = False
    decode_context_parallel_size: int = 1
    drafter: Drafter | None = None
    mamba_shared_prefix_checkpoint: bool = False
    watermark: float = 0.0
    hash_algo: str = "sha256"
    scheduling: Literal["sync", "async"] = "sync"


    def expanded(self) -> tuple[KVCacheGroup, ...]:
        """The groups one by one, each with `count` 1, in engine order."""
        return tuple(replace(group, count=1) for group in self.groups for _ in range(group.count))
