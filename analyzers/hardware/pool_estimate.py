"""How many blocks a GPU's memory leaves for the KV cache: an estimate, with its range.

    memory x gpu_memory_utilization - weights - activations and graphs = KV cache;  / bytes of a block in all layers

Weights are counted from the model's config; what activations, CUDA graphs and the context take is not known before a
server runs, and is what the range is of. A start-up log, metrics or an option say better.
"""

from __future__ import annotations

from typing import NamedTuple

from kvtune.analyzers.hardware.gpu import Gpu
from kvtune.analyzers.sizing.model_sizes import ModelSizes
from kvtune.analyzers.step_times.model_work import ModelWork

MEMORY_UTILIZATION = 0.92
"""The server's default since 0.22."""

_BESIDE_WEIGHTS_GIB = (2.0, 4.0, 8.0)
"""Least, expected and most memory a GPU beside weights and KV cache. Expected: `aiconfigurator-core` leaves 19.07 GiB
of an H100 beside the 50.1 GiB of Qwen3.5-27B."""


class PoolEstimate(NamedTuple):
    """`num_gpu_blocks`, the null block included.

    Attributes:
        estimate, low, high: blocks.
    """

    estimate: int
    low: int
    high: int


def estimate_pool(gpu: Gpu, work: ModelWork, sizes: ModelSizes, tensor_parallel: int) -> PoolEstimate | None:
    """The pool of a server with this model; None where blocks have no one size, or the weights do not fit."""
    page = sizes.block.attention_bytes_per_token
    layers = [group.layers for group in sizes.groups if group.group.cacheable]
    if page is None or sizes.model.packed or not layers or None in layers:
        return None
    block_bytes = page * sizes.block.attention_block_size * max(count or 0 for count in layers)
    free = gpu.memory_bytes * MEMORY_UTILIZATION - work.stored_bytes / tensor_parallel
    least, expected, most = (int((free - taken * 2**30) // block_bytes) for taken in _BESIDE_WEIGHTS_GIB)
    if expected < 2:
        return None
    return PoolEstimate(expected, max(2, most), least)
