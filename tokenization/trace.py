"""`TokenTrace`: a whole trace as flat arrays, the only thing that `kvtune.analyzers` sees of it.

R requests, T stored elements. An element is a token (`span == 1`) or a block hash (`span` = tokens per
block); lengths are always in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from kvtune.tokenization.doubts import Doubt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt32 = npt.NDArray[np.uint32]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

T = TypeVar("T")

PARTS = ("template", "tools", "system", "user", "assistant", "tool", "output")


class PartIndex(Protocol):
    """Says to which part of the rendered prompt a token belongs."""

    def part_of(self, request: int, position: int) -> str:
        """The part (one of `PARTS`) of prompt token `position` (0-based) of request `request`."""

    def runs(self, request: int, length: int) -> list[tuple[int, str]]:
        """The whole prompt of `length` tokens: (end, part) of each run of tokens of one part, ascending."""


class SelectedParts:
    """The index of a trace of which only some requests are left."""

    def __init__(self, parts: PartIndex, requests: Sequence[int]) -> None:
        self._parts = parts
        self._requests = requests

    def part_of(self, request: int, position: int) -> str:
        return self._parts.part_of(self._requests[request], position)

    def runs(self, request: int, length: int) -> list[tuple[int, str]]:
        return self._parts.runs(self._requests[request], length)


class OnePart:
    """The index of a trace without structure (plain prompts, ids, block hashes): everything is "user"."""

    def part_of(self, request: int, position: int) -> str:  # noqa: ARG002
        return "user"

    def runs(self, request: int, length: int) -> list[tuple[int, str]]:  # noqa: ARG002
        return [(length, "user")]


@dataclass(frozen=True)
class TokenTrace:
    """Requests in replay order (stable by arrival), read-only.

    Attributes:
        tokens: uint32[T], the prompts one after another (block hashes are interned to small ints).
        offsets: int64[R + 1]; prompt r is `tokens[offsets[r]:offsets[r + 1]]`.
        prompt_tokens: int64[R], prompt lengths in tokens (`diff(offsets)` where `span` is 1).
        arrival: float64[R], seconds; NaN where unknown.
        namespace: int32[R], equal values may share prefixes; dense from 0.
        ids: request ids, unique.
        span: tokens per element.
        output_tokens: int64[R], answer lengths; -1 where unknown.
        logged_prompt_tokens: int64[R], prompt lengths by the server's own count; -1 where not logged. None where no
            request logs one, or where they are the only lengths (block hashes).
        logged_cached_tokens: int64[R], tokens of each prompt that the server took from its cache; -1 where not logged,
            None where no request logs one.
        media_items: int64[R], images and other media in each prompt; None where no request has any.
        trusted_lengths: bool[R], prompts that were given the logged length, since content is no text; None: none.
        outputs, output_offsets: recorded answers as ids, laid out like the prompts; None where the trace
            has no answers that could be tokenized.
        retokenised_outputs: how many of the outputs were text, given ids by re-rendering.
        sessions: explicit session of each request, None where the log names none.
        servers: replica that served each request, None where the log names none.
        families: a name per request, derived from tools and the first system line.
        tool_sets: a name for each request's tools that does not depend on how they are ordered, None where it has
            none.
        parts: where in the prompt a token stands.
        doubts: what the log is known to have lost of the prompts.
    """

    tokens: UInt32
    offsets: Int64
    prompt_tokens: Int64
    arrival: Float64
    namespace: Int32
    ids: Sequence[str]
    span: int = 1
    output_tokens: Int64 | None = None
    logged_prompt_tokens: Int64 | None = None
    logged_cached_tokens: Int64 | None = None
    media_items: Int64 | None = None
    trusted_lengths: Bool | None = None
    outputs: UInt32 | None = None
    output_offsets: Int64 | None = None
    retokenised_outputs: int = 0
    sessions: Sequence[str | None] | None = None
    servers: Sequence[str | None] | None = None
    families: Sequence[str] | None = None
    tool_sets: Sequence[str | None] | None = None
    parts: PartIndex = field(default_factory=OnePart)
    doubts: tuple[Doubt, ...] = ()

    def __post_init__(self) -> None:
        requests = len(self.ids)
        for name in ("prompt_tokens", "arrival", "namespace"):
            if len(getattr(self, name)) != requests:
                raise ValueError(
                    f"TokenTrace.{name} has {len(getattr(self, name))} entries for {requests} requests"
                )
        if len(self.offsets) != requests + 1 or int(self.offsets[-1]) != len(self.tokens):
            raise ValueError("TokenTrace.offsets does not describe TokenTrace.tokens")
        if requests and int(self.prompt_tokens.min()) < 1:
            raise ValueError("TokenTrace has an empty prompt")
        for array in (self.tokens, self.offsets, self.prompt_tokens, self.arrival, self.namespace):
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, keep: Bool) -> TokenTrace:
        """The trace of the requests where `keep` (bool[R]) is set, in their order. Namespaces are dense again."""
        kept = np.flatnonzero(keep)
        places = kept.tolist()
        tokens, offsets = _select_rows(self.tokens, self.offsets, keep)
        outputs, output_offsets = self.outputs, self.output_offsets
        if outputs is not None and output_offsets is not None:
            outputs, output_offsets = _select_rows(outputs, output_offsets, keep)
        namespace = np.unique(self.namespace[kept], return_inverse=True)[1].astype(np.int32)

        def counts(array: Int64 | None) -> Int64 | None:
            return None if array is None else array[kept]

        def picked(names: Sequence[T] | None) -> list[T] | None:
            return None if names is None else [names[place] for place in places]

        return replace(
            self,
            tokens=tokens,
            offsets=offsets,
            prompt_tokens=self.prompt_tokens[kept],
            arrival=self.arrival[kept],
            namespace=namespace,
            ids=[self.ids[place] for place in places],
            output_tokens=counts(self.output_tokens),
            logged_prompt_tokens=counts(self.logged_prompt_tokens),
            logged_cached_tokens=counts(self.logged_cached_tokens),
            media_items=counts(self.media_items),
            trusted_lengths=None if self.trusted_lengths is None else self.trusted_lengths[kept],
            outputs=outputs,
            output_offsets=output_offsets,
            sessions=picked(self.sessions),
            servers=picked(self.servers),
            families=picked(self.families),
            tool_sets=picked(self.tool_sets),
            parts=SelectedParts(self.parts, places),
        )

    def prompt(self, request: int) -> UInt32:
        """The elements of one prompt, a view."""
        return self.tokens[int(self.offsets[request]) : int(self.offsets[request + 1])]


def _select_rows(rows: UInt32, offsets: Int64, keep: Bool) -> tuple[UInt32, Int64]:
    lengths = np.diff(offsets)
    selected = np.zeros(int(keep.sum()) + 1, dtype=np.int64)
    np.cumsum(lengths[keep], out=selected[1:])
    return rows[np.repeat(keep, lengths)], selected
