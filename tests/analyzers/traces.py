"""Traces of a few tokens, for numbers that can be worked by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvtune.tokenization.trace import TokenTrace


def trace_of(
    prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]] | None = None, **fields: object
) -> TokenTrace:
    lengths = [len(prompt) for prompt in prompts]
    if outputs is not None:
        fields["outputs"] = np.array([token for output in outputs for token in output], dtype=np.uint32)
        fields["output_offsets"] = np.cumsum([0] + [len(output) for output in outputs]).astype(np.int64)
        fields["output_tokens"] = np.array([len(output) for output in outputs], dtype=np.int64)
    return TokenTrace(
        tokens=np.array([token for prompt in prompts for token in prompt], dtype=np.uint32),
        offsets=np.cumsum([0, *lengths]).astype(np.int64),
        prompt_tokens=np.array(lengths, dtype=np.int64),
        arrival=fields.pop("arrival", np.full(len(prompts), np.nan)),  # type: ignore[arg-type]
        namespace=fields.pop("namespace", np.zeros(len(prompts), dtype=np.int32)),  # type: ignore[arg-type]
        ids=[f"r{index}" for index in range(len(prompts))],
        **fields,  # type: ignore[arg-type]
    )
