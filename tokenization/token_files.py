"""A `TokenTrace` as Parquet or Arrow files, for analyses of one's own: a row a request, prompts as token ids.

    DIR/part-00000.parquet   id, arrival_s, namespace, session, server, family, prompt_tokens, output_tokens,
    DIR/part-00001.parquet   logged_prompt_tokens, logged_cached_tokens, tokens, part_ends, part_names

`tokens` is list<uint32>. Part i of a prompt is its tokens from `part_ends[i - 1]` (0 for the first) to `part_ends[i]`,
and `part_names[i]` says whose they are. What is not known is null. A log of block hashes has its hashes, as small
numbers, for tokens. Needs the extra `parquet` (pyarrow), loaded here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Literal

import numpy as np

from kvtune.tokenization.errors import MissingDependencyError
from kvtune.tokenization.trace import PARTS, Float64, Int64, TokenTrace

TokenFormat = Literal["parquet", "arrow"]

MOST_ELEMENTS = 1 << 25
"""Of all prompts in one file; a longer prompt has one of its own."""


def require_pyarrow() -> None:
    """Raises `MissingDependencyError` without pyarrow."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "Parquet and Arrow files need pyarrow", way_out="pip install 'kvtune[parquet]'"
        ) from error


def file_spans(offsets: Int64, most: int = MOST_ELEMENTS) -> Iterator[tuple[int, int]]:
    """The requests [first, end) of each file.

    Args:
        offsets: int64[R + 1], where each prompt begins.
    """
    first, requests = 0, len(offsets) - 1
    while first < requests:
        end = int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1
        end = min(max(end, first + 1), requests)
        yield first, end
        first = end


def write_requests(file: BinaryIO, trace: TokenTrace, first: int, end: int, form: TokenFormat) -> None:
    """Write the requests [first, end) of a trace as one file."""
    import pyarrow

    table = pyarrow.table(_columns(trace, first, end))
    if form == "parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(table, file, compression="zstd", use_dictionary=_REPEATED)
    else:
        with pyarrow.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)


_REPEATED = ["session", "server", "family"]


def _columns(trace: TokenTrace, first: int, end: int) -> dict[str, Any]:
    """A pyarrow array by name."""
    import pyarrow

    def named(names: Sequence[str | None] | None) -> Any:
        values = [None] * (end - first) if names is None else list(names[first:end])
        return pyarrow.array(values, pyarrow.string())

    def counts(values: Int64 | None) -> Any:
        some = np.full(end - first, -1) if values is None else values[first:end]
        return pyarrow.array(some, pyarrow.int64(), mask=some < 0)

    begin = int(trace.offsets[first])
    offsets = (trace.offsets[first : end + 1] - begin).astype(np.int32)
    tokens = np.ascontiguousarray(trace.tokens[begin : int(trace.offsets[end])])
    runs = [_runs(trace, request) for request in range(first, end)]
    names = pyarrow.array(PARTS)
    ends = np.cumsum([0, *map(len, runs)]).astype(np.int32)
    codes = np.array([code for one in runs for _, code in one], dtype=np.int8)
    return {
        "id": named(trace.ids),
        "arrival_s": _times(trace.arrival[first:end]),
        "namespace": pyarrow.array(trace.namespace[first:end]),
        "session": named(trace.sessions),
        "server": named(trace.servers),
        "family": named(trace.families),
        "prompt_tokens": pyarrow.array(trace.prompt_tokens[first:end]),
        "output_tokens": counts(trace.output_tokens),
        "logged_prompt_tokens": counts(trace.logged_prompt_tokens),
        "logged_cached_tokens": counts(trace.logged_cached_tokens),
        "tokens": pyarrow.ListArray.from_arrays(offsets, tokens),
        "part_ends": pyarrow.ListArray.from_arrays(
            ends, pyarrow.array([at for one in runs for at, _ in one], pyarrow.int64())
        ),
        "part_names": pyarrow.ListArray.from_arrays(
            ends, pyarrow.DictionaryArray.from_arrays(codes, names).cast(pyarrow.string())
        ),
    }


def _times(arrival: Float64) -> Any:
    import pyarrow

    return pyarrow.array(arrival, mask=np.isnan(arrival))


def _runs(trace: TokenTrace, request: int) -> list[tuple[int, int]]:
    """(end, number in `PARTS`) of each run of tokens of one part."""
    length = int(trace.prompt_tokens[request])
    return [(end, PARTS.index(part)) for end, part in trace.parts.runs(request, length)]
