"""Traces of block hashes: dense ids, lengths in tokens."""

from __future__ import annotations

from typing import Any

import pytest

from kvtune.tokenization.encode import encode_trace
from kvtune.tokenization.request import Request
from tests.tokenization.encoding.models import (
    rejected_of,
)


class TestBlockHashes:
    def request(
        self, hashes: list[int], tokens: int | None = None, span: int = 512, **fields: Any
    ) -> Request:
        return Request(
            **{"id": "a", "block_hashes": hashes, "prompt_tokens": tokens, "hash_block_size": span, **fields}
        )

    def test_hashes_become_dense_ids_and_lengths_stay_in_tokens(self) -> None:
        requests = [self.request([10**18, 7], 1000), self.request([10**18, 9, 7], 1536, id="b")]
        trace, info = encode_trace(requests, None)
        assert (trace.span, info.kind) == (512, "blocks")
        assert trace.tokens.tolist() == [0, 1, 0, 2, 1]
        assert trace.offsets.tolist() == [0, 2, 5]
        assert trace.prompt_tokens.tolist() == [1000, 1536]
        assert trace.families == ["block hashes"] * 2
        assert trace.parts.part_of(1, 700) == "user"

    @pytest.mark.parametrize(("count", "tokens"), [(2, 1000), (1, 1000), (2, 1024), (2, None)])
    def test_a_log_may_leave_the_partial_last_block_out(self, count: int, tokens: int | None) -> None:
        trace, _ = encode_trace([self.request(list(range(count)), tokens)], None)
        assert trace.prompt_tokens.tolist() == [tokens or 1024]

    @pytest.mark.parametrize(("count", "tokens"), [(3, 1024), (1, 1024), (0, None), (1, 0)])
    def test_lengths_that_do_not_fit_are_rejected(self, count: int, tokens: int | None) -> None:
        requests = [self.request([1], 512), self.request(list(range(count)), tokens, id="b")]
        trace, info, _ = rejected_of(requests, None)
        assert list(trace.ids) == ["a"] and info.rejected_by == {"inconsistent_blocks": 1}

    def test_another_block_size_or_another_kind_of_prompt_is_rejected(self) -> None:
        requests = [self.request([1], 512), self.request([1], 16, 16, id="b"), Request(id="c", token_ids=[1])]
        trace, info, _ = rejected_of(requests, None)
        assert list(trace.ids) == ["a"]
        assert info.rejected_by == {"inconsistent_blocks": 1, "wrong_type": 1}
        trace, info, _ = rejected_of([Request(id="c", token_ids=[1]), self.request([1], 512)], None)
        assert list(trace.ids) == ["c"] and trace.span == 1
