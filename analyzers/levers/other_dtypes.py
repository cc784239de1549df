"""The same server with another dtype of KV cache or state, where that gives other blocks. Knows sizes, no traces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.levers.server import OtherServing
from kvtune.analyzers.sizing.blocks import kv_cache_dtype
from kvtune.analyzers.sizing.model_sizes import ModelSizes, size_layers
from kvtune.analyzers.sizing.sources import SizedServer
from kvtune.analyzers.sizing.what_if import KV_DTYPES, STATE_DTYPES
from kvtune.tokenization.errors import UnusableInputError

_COST = {
    "KV cache dtype": "attention over another precision, and another number of tokens in the same memory",
    "state dtype": "recurrent states in another precision: compare answers before it is served",
}


def other_dtypes(server: SizedServer, config: EngineConfig) -> tuple[OtherServing, ...]:
    """One per dtype that changes a block; none where the sizes do not come from a model config alone.

    Args:
        config: the server's settings; those of them that are not sizes are kept.
    """
    model = server.model
    if model is None or server.source != "model-config" or not model.model.state_layers:
        return ()
    found = []
    for what, flag, changes in _variants(model):
        try:
            sizes = size_layers(model.model, replace(model.flags, **changes))
        except UnusableInputError:
            continue  # this model cannot be served so
        groups = replace(server, groups=sizes.groups).layout()
        if [group.block_size for group in groups] != [group.block_size for group in config.groups]:
            blocks = _same_memory(config.num_blocks, model, sizes)
            other = replace(config, groups=groups, match_unit=None, num_blocks=blocks)
            found.append(OtherServing(what, flag, other, _COST[what]))
    return tuple(found)


def _variants(model: ModelSizes) -> Iterator[tuple[str, str, dict[str, Any]]]:
    today = kv_cache_dtype(model.model, model.flags)
    for dtype in KV_DTYPES:
        if not today.startswith(dtype[:3]):
            yield "KV cache dtype", f"--kv-cache-dtype {dtype}", {"kv_cache_dtype": dtype}
    state = model.flags.mamba_ssm_cache_dtype
    for dtype in STATE_DTYPES:
        if dtype != state:
            yield "state dtype", f"--mamba-ssm-cache-dtype {dtype}", {"mamba_ssm_cache_dtype": dtype}


def _same_memory(num_blocks: int | None, today: ModelSizes, then: ModelSizes) -> int | None:
    """Blocks of the changed server in the memory that today's have, the null block among them."""
    old, new = (
        sizes.block.attention_block_size * (sizes.block.attention_bytes_per_token or 0)
        for sizes in (today, then)
    )
    return num_blocks * old // new if num_blocks is not None and old and new else num_blocks
