"""Prompts that a log gives as block hashes: interned to small ints, one element a block."""

from __future__ import annotations

import numpy as np

from kvtune.tokenization.encoding.buffer import TokenBuffer
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.request import Request


class BlockRows:
    """Collects rows of block hashes with one block size.

    Attributes:
        span: tokens per block, 0 before the first row. lengths: prompt lengths in tokens. rows: the elements.
    """

    def __init__(self) -> None:
        self.span = 0
        self.lengths: list[int] = []
        self.rows = TokenBuffer()
        self._numbers: dict[int, int] = {}

    def add(self, request: Request) -> None:
        """Take one request; a partial last block is an element of its own.

        Raises:
            UnusableInputError: no block size or another one than before, or a length that does not fit.
        """
        hashes = request.block_hashes or []
        span = request.hash_block_size
        if span is None or span < 1:
            raise UnusableInputError("block hashes without a block size", field="hash_block_size")
        if self.span and span != self.span:
            raise UnusableInputError(
                "block hashes of another block size", found=str(span), wanted=str(self.span)
            )
        length = request.prompt_tokens if request.prompt_tokens is not None else len(hashes) * span
        if length < 1 or not length // span <= len(hashes) <= -(-length // span):
            raise UnusableInputError(
                "prompt length and block hashes disagree",
                found=f"{len(hashes)} blocks of {span} for {length} tokens",
                wanted=f"{-(-length // span)} blocks",
            )
        self.span = span
        numbers = self._numbers
        self.rows.append(
            np.fromiter(
                (numbers.setdefault(one, len(numbers)) for one in hashes), dtype=np.uint32, count=len(hashes)
            )
        )
        self.lengths.append(length)
