"""`Workload`: the requests of a trace as the engine computes them, prompts and forced outputs as token ids.

Outputs are the trace's own where the mode has them cached, else made from a seed: what the model would have said
is recorded, never fed back, so that every candidate computes the same tokens. Knows traces and prefix names; no
engine setting.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np

from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.replay import ReplayInput
from kvtune.analyzers.shared import Outputs, find_shared_prefixes
from kvtune.analyzers.sweep import replay_input
from kvtune.gpu_probe.engine.step import Int64
from kvtune.tokenization.errors import NoUsableRequestError, UnusableInputError
from kvtune.tokenization.trace import TokenTrace


@dataclass(frozen=True)
class Workload:
    """R requests in replay order.

    Attributes:
        inputs: lengths, prefix names and arrivals, as the replay takes them.
        tokens: per request int64[prompt + outputs], read-only.
    """

    inputs: ReplayInput
    tokens: Seq[Int64]

    def __len__(self) -> int:
        return len(self.tokens)

    def ids_of(self, sequence: Sequence, start: int, stop: int) -> Int64:
        """Token ids at positions [start, stop) of a request."""
        return self.tokens[sequence.index][start:stop]

    def first(self, count: int) -> Workload:
        """The first `count` requests."""
        if count >= len(self):
            return self
        inputs = replace(
            self.inputs,
            paths=self.inputs.paths[:count],
            prompt_tokens=self.inputs.prompt_tokens[:count],
            output_tokens=self.inputs.output_tokens[:count],
            arrival=None if self.inputs.arrival is None else self.inputs.arrival[:count],
            ids=self.inputs.ids[:count],
        )
        return replace(self, inputs=inputs, tokens=self.tokens[:count])

    @property
    def prompt_tokens(self) -> int:
        return int(self.inputs.prompt_tokens.sum())


def make_workload(
    trace: TokenTrace,
    outputs: Outputs,
    *,
    vocab_size: int,
    seed: int,
    limit: int | None = None,
    fold_ids: bool = False,
) -> Workload:
    """The first `limit` requests of a trace.

    Args:
        fold_ids: take ids modulo the vocabulary (a bundled model on a trace of another tokenizer); hits are those
            of the ids themselves.

    Raises:
        NoUsableRequestError: the trace has no token ids (block hashes or lengths only), or no request.
        UnusableInputError: an id beyond the vocabulary; `outputs` asks for what the trace lacks.
    """
    if trace.span != 1:
        raise NoUsableRequestError(
            "the trace holds block hashes: the engine needs text or token ids to compute",
            way_out="validate with a trace of prompts, messages or ids",
        )
    if not len(trace):
        raise NoUsableRequestError("the trace holds no usable request")
    part = first_requests(trace, limit)
    inputs = replay_input(part, find_shared_prefixes(part, outputs))
    tokens = []
    for index in range(len(part)):
        wanted = int(inputs.output_tokens[index])
        ids = np.concatenate(
            [part.prompt(index).astype(np.int64), _output(part, index, wanted, outputs, vocab_size, seed)]
        )
        if fold_ids:
            ids %= vocab_size
        elif int(ids.max()) >= vocab_size:
            raise UnusableInputError(
                "has a token id beyond the model's vocabulary",
                where=f"request {part.ids[index]}",
                found=str(int(ids.max())),
                wanted=f"below {vocab_size}",
                way_out="give the --model whose tokenizer made the ids",
            )
        ids.flags.writeable = False
        tokens.append(ids)
    return Workload(inputs, tokens)


def _output(trace: TokenTrace, index: int, count: int, outputs: Outputs, vocab_size: int, seed: int) -> Int64:
    if outputs == "recorded" and trace.outputs is not None and trace.output_offsets is not None:
        begin, end = int(trace.output_offsets[index]), int(trace.output_offsets[index + 1])
        if end > begin:
            return trace.outputs[begin:end].astype(np.int64)
    return np.random.default_rng([seed, index]).integers(0, vocab_size, count)


def first_requests(trace: TokenTrace, limit: int | None) -> TokenTrace:
    """The trace cut after `limit` requests, everything that belongs to them kept."""
    if limit is None or limit >= len(trace):
        return trace
    end = int(trace.offsets[limit])
    outputs = output_offsets = None
    if trace.outputs is not None and trace.output_offsets is not None:
        outputs = trace.outputs[: int(trace.output_offsets[limit])]
        output_offsets = trace.output_offsets[: limit + 1]
    return replace(
        trace,
        tokens=trace.tokens[:end],
        offsets=trace.offsets[: limit + 1],
        prompt_tokens=trace.prompt_tokens[:limit],
        arrival=trace.arrival[:limit],
        namespace=trace.namespace[:limit],
        ids=trace.ids[:limit],
        output_tokens=None if trace.output_tokens is None else trace.output_tokens[:limit],
        outputs=outputs,
        output_offsets=output_offsets,
        sessions=None if trace.sessions is None else trace.sessions[:limit],
        servers=None if trace.servers is None else trace.servers[:limit],
        families=None if trace.families is None else trace.families[:limit],
    )
