"""Texts to ids by rank-ordered BPE (library `tiktoken`), where that is known to give what `tokenizers` gives.

Texts are put together, with a special token between them, since a call costs as much as ten tokens do. What is not
known to come out the same is left to the caller: characters on which the libraries' tables differ, texts that
normalization changes, tokens that `rank_order` names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np

from kvtune.tokenization.tokenizers.code_points import KnownCodePoints
from kvtune.tokenization.tokenizers.rank_order import RankOrder
from kvtune.tokenization.trace import Int64, UInt32

_CHARS_A_CALL = 1 << 15


class RankedEncoder:
    """Encodes what it may, in threads that share one vocabulary."""

    def __init__(
        self, order: RankOrder, pattern: str, special_tokens: Mapping[str, int], *, workers: int
    ) -> None:
        """`special_tokens`: by text, with their ids; none is found within another, and there is at least one."""
        from tiktoken import Encoding

        ends = np.cumsum(order.sizes).tolist()
        tokens = (order.data[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True))
        count = len(ends)
        specials = {token: count + number for number, token in enumerate(special_tokens)}
        self._encoding = Encoding(
            "ranked",
            pat_str=pattern,
            mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
            special_tokens=specials,
        )
        self._ids = np.array([*order.ids, *special_tokens.values()], dtype=np.uint32)
        self._uncertain = range(order.certain, count)
        self._between, self._between_rank = next(iter(specials.items()))
        self._avoided = [text for text in order.avoided if text.isascii()]
        others = [re.escape(text) for text in order.avoided if not text.isascii()]
        self._avoided_others = re.compile("|".join(others)) if others else None
        self._known = KnownCodePoints()
        self._workers = workers

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._workers, thread_name_prefix="ranked")

    def encode(self, texts: Sequence[str]) -> list[UInt32 | None]:
        """Ids of each text, None where they are to be had from the library that the file is made for."""
        found: list[UInt32 | None] = [None] * len(texts)
        groups = list(_groups(self._known.admitted(texts)))
        several = len(groups) > 1 and self._workers > 1
        together = (self._pool.map if several else map)(
            self._together, [[texts[place] for place in group] for group in groups]
        )
        for group, encoded in zip(groups, together, strict=True):
            for place, ids in zip(group, encoded, strict=True):
                found[place] = ids
        return found

    def decode(self, ids: Sequence[int]) -> str | None:
        """The text of ids, broken characters replaced; None where one of them is of no rank."""
        ranks = self._ranks_of_ids[np.asarray(ids, dtype=np.int64)]
        return None if (ranks < 0).any() else self._encoding.decode(ranks.tolist())

    @cached_property
    def _ranks_of_ids(self) -> Int64:
        ranks = np.full(int(self._ids.max()) + 2, -1, dtype=np.int64)
        ranks[self._ids] = np.arange(len(self._ids))
        return ranks

    def _together(self, texts: Sequence[str]) -> Sequence[UInt32 | None]:
        ranks = self._ranks(self._between.join(texts))
        if ranks is not None:
            borders = np.flatnonzero(ranks == self._between_rank)
            if len(borders) == len(texts) - 1 and not self._is_uncertain(ranks):
                ids = self._ids[ranks]
                starts, ends = [0, *(borders + 1).tolist()], [*borders.tolist(), len(ids)]
                return [ids[start:end] for start, end in zip(starts, ends, strict=True)]
        return [self._alone(text) for text in texts]

    def _alone(self, text: str) -> UInt32 | None:
        ranks = self._ranks(text)
        return None if ranks is None or self._is_uncertain(ranks) else self._ids[ranks]

    def _ranks(self, text: str) -> UInt32 | None:
        if any(avoided in text for avoided in self._avoided):
            return None
        if self._avoided_others is not None and not text.isascii() and self._avoided_others.search(text):
            return None
        try:
            return self._encoding.encode_to_numpy(text, allowed_special="all")
        except ValueError:  # words so long that its regular expressions give up
            return None

    def _is_uncertain(self, ranks: UInt32) -> bool:
        within = self._uncertain
        return bool(within) and bool(((ranks >= within.start) & (ranks < within.stop)).any())


def _groups(admitted: Iterator[tuple[int, str]]) -> Iterator[list[int]]:
    """Places of texts, as many at a time as make one call."""
    group: list[int] = []
    chars = 0
    for place, text in admitted:
        group.append(place)
        chars += len(text)
        if chars > _CHARS_A_CALL:
            yield group
            group, chars = [], 0
    if group:
        yield group
