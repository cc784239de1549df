"""KV cache groups and the engine settings that decide reuse: what is given, nothing that is resolved from it.

Sizes are tokens per physical block and rank. The order of groups is the engine's own and matters: it decides
which block is evicted first. `parse_groups` reads the syntax of `--groups`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from kvtune.tokenization.errors import UnusableInputError

Kind = Literal["full", "sliding_window", "chunked_local", "mamba", "ring", "unspecified"]
"""`ring` is a circular buffer: one block a request for life.
`unspecified` is what a bare list of block sizes gives: enough to resolve sizes, not to predict hits."""

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
    parallel_drafting: bool = False


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


_KINDS: dict[str, Kind] = {
    "full": "full",
    "mamba": "mamba",
    "swa": "sliding_window",
    "chunked": "chunked_local",
    "ring": "ring",
}
_SYNTAX = (
    "a comma list of full:SIZE, mamba:SIZE, swa:SIZE:window=W, chunked:SIZE[:window=W], ring:SIZE "
    "(*K for K like groups)"
)
_WAY_OUT = "for instance mamba:528*3,full:528"
_MAX_GROUPS = 256


def parse_groups(spec: str) -> tuple[KVCacheGroup, ...]:
    """Read the value of `--groups`, in the engine's own order.

    `mamba:528*3,full:528` are three Mamba groups and one full-attention group; modifiers follow the size:
    `:window=W` (of a chunked group: its chunk, which is a block where none is stated), `:mode=align|none|all`,
    `:compress=N`, `:cacheable=no`, `:draft`, `:export=ALIGN`. A bare list of sizes (`1024,32`) gives groups of kind
    `unspecified`.

    Raises:
        UnusableInputError: naming the entry and what is wrong with it.
    """
    entries = [entry.strip() for entry in spec.split(",")]
    groups = tuple(_parse_entry(entry) for entry in entries)
    if sum(group.count for group in groups) > _MAX_GROUPS:
        raise _bad(spec, f"more than {_MAX_GROUPS} groups")
    return groups


def _parse_entry(entry: str) -> KVCacheGroup:
    body, star, times = entry.partition("*")
    head, *modifiers = body.split(":")
    if star and ":" in times:  # mamba:528*3:mode=align reads as well as mamba:528:mode=align*3
        times, *more = times.split(":")
        modifiers += more
    count = _positive(entry, "count", times) if star else 1
    if head.strip().isdigit() and not modifiers:
        return KVCacheGroup("unspecified", _positive(entry, "block size", head), count)
    kind = _KINDS.get(head.strip())
    if kind is None:
        raise _bad(entry, f"unknown kind of group {head.strip()[:20]!r}")
    if not modifiers:
        raise _bad(entry, "no block size")
    fields: dict[str, Any] = {"mode": "align" if kind == "mamba" else None}
    for modifier in modifiers[1:]:
        name, value = _modifier(entry, kind, modifier.strip())
        fields[name] = value
    block_size = _positive(entry, "block size", modifiers[0])
    if kind == "ring":
        fields["cacheable"] = False
    if kind == "chunked_local":
        fields.setdefault("window", block_size)
    if kind == "sliding_window" and "window" not in fields:
        raise _bad(entry, "no window=W")
    return KVCacheGroup(kind, block_size, count, **fields)


def _modifier(entry: str, kind: Kind, text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    if key == "draft" and not value:
        return "draft", True
    if key == "cacheable" and value in ("yes", "no"):
        return "cacheable", value == "yes"
    if key == "compress":
        return "tokens_per_state", _positive(entry, key, value)
    if key == "window" and kind in ("sliding_window", "chunked_local"):
        return "window", _positive(entry, key, value)
    if kind == "mamba":
        if key == "mode" and value in ("align", "none", "all"):
            return "mode", value
        if key == "export":
            return "export_alignment", _positive(entry, key, value)
    raise _bad(entry, f"{text[:30]!r} is no modifier of a {kind} group")


def _positive(entry: str, what: str, text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and int(text[:12]) > 0 and len(text) <= 9):
        raise _bad(entry, f"the {what} is no positive number")
    return int(text)


def _bad(entry: str, what: str) -> UnusableInputError:
    return UnusableInputError(
        what, field="--groups", found=repr(entry[:60]), wanted=_SYNTAX, way_out=_WAY_OUT
    )
