"""Defaults that the server's argument layer sets by release and GPU, read in `vllm/engine/arg_utils.py`.

| release | lines of `get_batch_defaults` | tiers of device memory |
|---|---|---|
| 0.26 | 2460 | >= 70 GiB, not A100; else |
| 0.27 | 2544 | the same |
| 0.28 | 2582, 2592 | >= 160 GiB; >= 70 GiB, not A100; else |
| 0.29 | 2698, 2708 | the same |
| 0.30 | 2730, 2740 | the same |
| 0.31 | 2858, 2868 | the same |
| 0.32 | 2923, 2933 | the same |
| 0.33 | 2973, 2984 | >= 160 GiB; >= 70 GiB, neither A100 nor GB10; else |
"""

from __future__ import annotations

from typing import NamedTuple

Release = tuple[int, int]
GIB = 2**30


class BatchDefaults(NamedTuple):
    """Of the API server (`vllm serve`), where neither option is given.

    Attributes:
        max_num_batched_tokens: step budget, tokens.
        max_num_seqs: requests in one step at most.
    """

    max_num_batched_tokens: int
    max_num_seqs: int


_LARGEST = BatchDefaults(16_384, 1_024)
_LARGE = BatchDefaults(8_192, 1_024)
_OTHER = BatchDefaults(2_048, 256)
SMALLEST_STEP_BUDGET = _OTHER.max_num_batched_tokens
"""Prompts up to this length are one step on every GPU, but for what the splitter adds."""
_LARGEST_SINCE: Release = (0, 28)
_GB10_SMALL_SINCE: Release = (0, 33)


def batch_defaults(release: Release, memory_bytes: int, gpu_name: str) -> BatchDefaults:
    """Step budget and requests a step that `vllm serve` takes on a GPU.

    Args:
        memory_bytes: the device's total memory. gpu_name: as the driver or its data sheet has it.
    """
    name = gpu_name.lower()
    if memory_bytes >= 160 * GIB and release >= _LARGEST_SINCE:
        return _LARGEST
    small = "a100" in name or ("gb10" in name and release >= _GB10_SMALL_SINCE)
    return _LARGE if memory_bytes >= 70 * GIB and not small else _OTHER
