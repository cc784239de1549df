"""Engine errors compared by meaning: which check failed and which value it refused, not how it is worded."""

from __future__ import annotations

import re

from kvtune.analyzers.refusal import EngineRefusal

_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (rule, re.compile(pattern))
    for rule, pattern in (
        ("unit_not_positive", r"prefix_match_unit .*greater than 0.*input_value=(-?\d+)"),
        ("unit_on_single_group", r"prefix_match_unit=(\d+); with a single KV cache group"),
        ("unit_does_not_divide", r"prefix_match_unit=(\d+); .*divisible by prefix_match_unit"),
        ("compression_misaligned", r"prefix_match_unit=(\d+); .*per-state compression"),
        ("retention_without_sparse_group", r"(?i)retention_interval is set but"),
        ("retention_not_multiple", r"(?i)retention_interval \((-?\d+)\) must be"),
        ("mamba_mode_not_align", r"requires mamba_cache_mode='align'"),
        ("block_not_multiple_of_hash_unit", r"divisible by hash_block_size.*hash_block_size=(\d+)"),
        ("single_group_hash_differs", r"hash_block_size == block_size"),
        ("hybrid_needs_two_specs", r"at least two attention groups"),
        ("block_exceeds_budget", r"block_size \((\d+)\) must be <= "),
        ("kind_without_fine_lookup", r"does not support fine-grained"),
        ("chunked_local_with_drop", r"eagle \+ chunked local"),
        ("chunked_local_block", r"not compatible with chunked local"),
        ("never_fits", r"never fits the block pool"),
        ("draft_window_exceeds_block", r"Multi-module MTP"),
        ("kind_not_under_dcp", r"DCP with hybrid"),
    )
)

Meaning = tuple[str, str, int | None]

UNKNOWN = "unknown"
"""The rule of an error that is none of the engine's checks."""


def meaning_of(error: dict[str, str]) -> Meaning:
    """(exception class, rule, refused value) of an engine's error as vectors record it.

    A message that no rule knows gives the rule `UNKNOWN`, which equals nothing of ours.
    """
    for rule, pattern in _RULES:
        match = pattern.search(error["message"])
        if match:
            subject = int(match[1]) if pattern.groups else None
            return error["type"], rule, subject
    return error["type"], UNKNOWN, None


def meaning_of_refusal(refusal: EngineRefusal) -> Meaning:
    """The same of our own refusal; the value only where the engine's message states it."""
    stated = {rule for rule, pattern in _RULES if pattern.groups}
    return refusal.type, refusal.rule, refusal.subject if refusal.rule in stated else None
