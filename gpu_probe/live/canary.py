"""A probe prompt of random tokens: is the cache empty, and which grid do hits really land on?

    sent twice   first 0, then the last boundary below its end: 2S - 1 tokens hit 2S - u on a grid of u
    reset, then  0, or the reset did nothing, whatever its status code said

S is the scheduler block. Nobody else ever sent these tokens, so nothing but the server's own cache can answer.
Knows probes; not the requests that are measured.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.profiles import profile_for
from kvtune.analyzers.resolver import resolve_sizes
from kvtune.gpu_probe.live.client import LiveClient, RefusedRequestError
from kvtune.gpu_probe.live.prediction import Predictor, modelled, trace_of
from kvtune.gpu_probe.live.requests import COMPLETIONS, Sampling, TokenBodies
from kvtune.tokenization.errors import MissingDependencyError
from kvtune.tokenization.trace import Int64, TokenTrace, UInt32


@dataclass(frozen=True)
class Probe:
    """What a prompt of `length` tokens hit when it was sent a second time, and what it should have."""

    length: int
    hit: int
    expected: int

    @property
    def grid(self) -> int | None:
        """The grid that such a hit shows, None without one. Grids of 1 and 2 look alike (`probe_length`)."""
        return self.length + 1 - self.hit if self.hit else None


class Canary:
    """Probes one server.

    Args:
        vocabulary: token ids that the server is known to take.
    """

    def __init__(self, client: LiveClient, model: str, config: EngineConfig, vocabulary: UInt32) -> None:
        self._client = client
        self._model = model
        self._config = config
        seed = int.from_bytes(os.urandom(8), "little")
        self._random = np.random.default_rng(seed)
        self._vocabulary = vocabulary
        self._prompt = self._new_prompt()

    async def probe(self, salt: str | None = None) -> Probe:
        """Send a new prompt twice.

        Raises:
            MissingDependencyError: the first one hit, or the server does not say what was cached.
        """
        self._prompt = self._new_prompt()
        first, _ = await self._send(self._prompt, salt)
        hit, said = await self._send(self._prompt, salt)
        expected = int(Predictor(trace_of([self._prompt, self._prompt])).predict(self._config).hits[1])
        if not said and expected:
            raise MissingDependencyError(
                "the server does not say how many tokens were cached",
                where=str(self._client.base),
                wanted="usage.prompt_tokens_details.cached_tokens",
                way_out="start it with --enable-prompt-tokens-details",
            )
        if first:
            raise MissingDependencyError(
                "a prompt of random tokens hit the cache at its first use",
                where=str(self._client.base),
                found=f"{first} tokens",
                wanted="0",
                way_out="the figures of this server cannot be trusted",
            )
        return Probe(len(self._prompt), hit, expected)

    async def still_cached(self, salt: str | None = None) -> bool:
        """Whether the last probe's prompt is found, which puts it in the cache again."""
        hit, _ = await self._send(self._prompt, salt)
        return hit > 0

    async def _send(self, prompt: Int64, salt: str | None) -> tuple[int, bool]:
        one = np.ones(1, dtype=np.int64)
        bodies = TokenBodies(trace_of([prompt]), one, Sampling(self._model, salt))
        try:
            answer = await self._client.complete(COMPLETIONS, bodies.body(0))
        except RefusedRequestError as error:
            raise MissingDependencyError(
                "the server refuses a prompt of token ids", where=COMPLETIONS, found=str(error)
            ) from None
        return answer.cached_tokens or 0, answer.cached_tokens is not None

    def _new_prompt(self) -> Int64:
        return self._random.choice(self._vocabulary, probe_length(self._config)).astype(np.int64)


def probe_length(config: EngineConfig) -> int:
    """Two scheduler blocks less one token: its resend hits the last boundary of every grid that divides the block.

    One token less than the blocks, since releases before 0.32 keep nothing of a prompt that ends on a boundary.
    """
    block = resolve_sizes(modelled(config), profile_for(config.version).profile).scheduler_block_size
    longest = (config.max_model_len or 2 * block) - 1
    return max(2, min(2 * block - 1, longest))


def vocabulary_of(trace: TokenTrace) -> UInt32:
    """Token ids that the trace uses, which the server has to take anyway, and two that every vocabulary has."""
    return np.union1d(trace.tokens, np.array([1, 2], dtype=np.uint32)).astype(np.uint32)
