"""Defaults that the server sets by release, GPU and model, where no option is given; read in the released sources.

Lines are those of `vllm/engine/arg_utils.py` unless a file is named: `models` is
`vllm/model_executor/models/config.py`, `cache` and `scheduler` are below `vllm/config`, `envs` is `vllm/envs.py`.

| release | step budget and requests by GPU | set | prefix caching | chunking |
|---|---|---|---|---|
| 0.26 | 2460 | 2649, 2655 | 2520 | 2517 |
| 0.27 | 2544 | 2733, 2739 | 2604 | 2601 |
| 0.28 | 2582, 2592 | 2777, 2783 | 2650 | 2649 |
| 0.29 | 2698, 2708 | 2893, 2899 | 2766 | 2765 |
| 0.30 | 2730, 2740 | 2925, 2931 | 2798 | 2797 |
| 0.31 | 2858, 2868 | 3053, 3059 | 2926 | 2925 |
| 0.32 | 2923, 2933 | 3118, 3124 | 2991 | 2990 |
| 0.33 | 2973, 2984 | 3172, 3178 | 3045 | 3044 |

| release | retention interval | Mamba cache mode | hash algorithm | long-prefill threshold |
|---|---|---|---|---|
| 0.26 | envs 297 | models 560 | cache 95 | scheduler 80 |
| 0.27 | envs 302 | models 615 | cache 95 | scheduler 70 |
| 0.28 | envs 315 | models 604 | cache 98 | scheduler 70 |
| 0.29 | 2394 | models 624 | cache 140 | scheduler 70 |
| 0.30 | cache 148 | models 624 | cache 132 | scheduler 70 |
| 0.31 | cache 160 | models 642 | cache 144 | scheduler 80 |
| 0.32 | cache 159 | models 687 | cache 143 | scheduler 79 |
| 0.33 | cache 275 | models 765 | cache 259 | scheduler 79 |

What they say:

- Step budget, requests a step (API server): from 160 GiB of device memory 16,384 and 1,024, since 0.28; from 70 GiB
  8,192 and 1,024, but for A100 and, since 0.33, GB10; else 2,048 and 256.
- Prefix caching: wherever the model supports it; before 0.28 not for hybrid models
  (`sizing.releases: SizingRules.hybrid_caching`).
- Chunked prefill: on wherever the model supports it.
- Retention interval: none (every state is kept) before 0.29, 0 since. 0.29 sets it to none for a hybrid model with
  a drafter that reads the target's hidden states.
- Mamba cache mode with prefix caching: `all` for models that declare it before 0.28, else `align`; without: `none`.
- Hash algorithm: `sha256` in all. Long-prefill threshold: 0 in all.
"""

from __future__ import annotations

from typing import NamedTuple

from kvtune.analyzers.drafting import EAGLE_LIKE

Release = tuple[int, int]
GIB = 2**30
HASH_ALGO = "sha256"
SPARSE_SINCE: Release = (0, 29)
_DENSE_BESIDE_DRAFTER: Release = (0, 29)


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


def default_retention(release: Release, *, hybrid: bool, draft_method: str | None) -> int | None:
    """The retention interval in tokens that a server takes where none is given; None: every state is kept.

    Args:
        hybrid: the model has attention and recurrent states. draft_method: None without a drafter.
    """
    if release < SPARSE_SINCE or (release == _DENSE_BESIDE_DRAFTER and hybrid and draft_method in EAGLE_LIKE):
        return None
    return 0
