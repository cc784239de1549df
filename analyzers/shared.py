"""Where each prompt's shared prefix ends: with which earlier request, how long, and the prefix keys for the replay.

Knows a `TokenTrace` and which outputs the engine would keep in its cache; no blocks, no units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvtune.analyzers.prefix_tree import KEY_SHIFT, PrefixPath, build_prefix_tree
from kvtune.tokenization.encoding.buffer import in_one
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.trace import Int32, Int64, TokenTrace, UInt32

Outputs = Literal["none", "length", "recorded"]


@dataclass(frozen=True)
class SharedPrefixes:
    """Shared prefixes of a trace under one output mode. R requests, lengths in tokens.

    Attributes:
        shared: int64[R], the longest prefix shared with any earlier prompt of the namespace, or with an
            earlier output that the mode puts in the cache; at most the prompt's length - 1.
        shared_with: int32[R], the latest earlier request that shares that much; -1 where none does.
        repeated: int64[R], the longest prefix of the prompt that a later prompt has, too.
        paths: prefix keys of each prompt followed by its cached output.
        output_tokens: int64[R], generated tokens under the mode, at least 1.
    """

    shared: Int64
    shared_with: Int32
    repeated: Int64
    paths: Sequence[PrefixPath]
    output_tokens: Int64


def find_shared_prefixes(trace: TokenTrace, outputs: Outputs = "none") -> SharedPrefixes:
    """Compare every prompt with everything cached before it, exact to the token, in one pass.

    Raises:
        UnusableInputError: `outputs` asks for lengths or ids that the trace does not hold.
    """
    generated = _generated_tokens(trace, outputs)
    tree = build_prefix_tree(
        trace.tokens, trace.offsets, trace.namespace, span=trace.span, lengths=trace.prompt_tokens
    )
    repeated = tree.repeated
    if outputs == "recorded":
        tree = build_prefix_tree(*_with_outputs(trace), trace.namespace)
    paths = tree.paths
    if outputs == "length":
        # Unique ids: they take blocks, and match nothing. A prefix of an own output belongs to its request.
        paths = [
            PrefixPath([*path.ends, path.ends[-1] + more], [*path.bases, index << KEY_SHIFT])
            for index, (path, more) in enumerate(zip(paths, generated.tolist(), strict=True))
        ]
    shared = np.minimum(tree.shared, trace.prompt_tokens - 1)
    shared_with = np.where(shared > 0, tree.shared_with, -1).astype(np.int32)
    return SharedPrefixes(shared, shared_with, repeated, paths, generated)


def _generated_tokens(trace: TokenTrace, outputs: Outputs) -> Int64:
    if outputs == "none":
        return np.ones(len(trace), dtype=np.int64)
    if outputs == "recorded":
        if trace.output_offsets is None:
            raise UnusableInputError(
                "the trace holds no recorded answers",
                field="--outputs",
                found="recorded",
                way_out="use --outputs none or --outputs length",
            )
        return np.maximum(np.diff(trace.output_offsets), 1)
    if trace.output_tokens is None or not (trace.output_tokens >= 0).any():
        raise UnusableInputError(
            "the trace holds no output lengths",
            field="--outputs",
            found="length",
            way_out="use --outputs none",
        )
    return np.maximum(trace.output_tokens, 1)


def _with_outputs(trace: TokenTrace) -> tuple[UInt32, Int64]:
    """Prompts and recorded answers as one sequence each."""
    assert trace.outputs is not None
    assert trace.output_offsets is not None
    ends = trace.output_offsets
    return in_one(
        np.concatenate((trace.prompt(index), trace.outputs[int(ends[index]) : int(ends[index + 1])]))
        for index in range(len(trace))
    )
