"""Vocabularies in a `tokenizer.json`: by rank where that provably gives the same ids, else by the library `tokenizers`.

What the file is found to be is kept between runs (`compiled`). The library is loaded when something needs it; where
something will, in a process of its own from the start, since it takes as long as encoding a million tokens.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from kvtune.tokenization.tokenizers import compiled as compiling
from kvtune.tokenization.tokenizers.compiled import Compiled
from kvtune.tokenization.tokenizers.cut_rules import cut_rules, flat, known_pattern
from kvtune.tokenization.tokenizers.library import Library
from kvtune.tokenization.tokenizers.ranked_encoder import RankedEncoder
from kvtune.tokenization.tokenizers.vocabulary import byte_length
from kvtune.tokenization.trace import Int64, UInt32

_UNKNOWN_BYTES = -1


class HuggingFaceVocabulary:
    """A `Vocabulary` over one `tokenizers.Tokenizer`, which the library's own threads share."""

    kind: Literal["hf", "tiktoken"] = "hf"

    def __init__(
        self,
        path: Path,
        *,
        add_bos_token: tuple[bool | None, str | None] = (None, None),
        add_eos_token: tuple[bool | None, str | None] = (None, None),
        added_tokens: Mapping[str, Any] | None = None,
        workers: int | None = None,
        by_rank: bool = True,
        checked: bool = False,
    ) -> None:
        """Load `path`.

        Args:
            added_tokens: `added_tokens_decoder` of `tokenizer_config.json`; tokens of it that the file lacks are
                added in the order of their ids, as the engine's tokenizer does.
            add_bos_token, add_eos_token: the flag of the same name in `tokenizer_config.json`, which overrules
                the file's post-processor, and the token's text.
            workers: threads for encoding, at most one a core; the library reads the number when it first encodes in
                parallel.
            by_rank: whether texts may be encoded by rank.
            checked: `check_ids` will be asked; the library is loaded meanwhile.

        Raises:
            UnusableInputError: the file is missing or no tokenizer.
        """
        cores = os.cpu_count() or 1
        threads = min(workers or cores, cores)
        if workers is not None:
            os.environ["RAYON_NUM_THREADS"] = str(min(workers, cores))
        self.source = str(path)
        self._library = Library(path, added_tokens or {}, beside=by_rank and threads > 1)
        if checked:
            self._library.begin()
        found = self._found(path, added_tokens or {}) if by_rank else self._library.describe()
        self.size = found.size
        self.special_tokens = {token.content: number for number, token in found.added.items()}
        self.cuts = cut_rules(found.added, found.normalizer, found.pre_tokenizer)
        self.affixes = self._affixes(found.post_processor, add_bos_token, add_eos_token)
        self._byte_level = any(part["type"] == "ByteLevel" for part in flat(found.pre_tokenizer))
        self._bytes = np.full(self.size, _UNKNOWN_BYTES, dtype=np.int32)
        self._decodes_bytes = found.decoder is not None and found.decoder["type"] == "ByteLevel"
        self._ranked: RankedEncoder | None = None
        pattern = known_pattern(found.pre_tokenizer)
        if found.order is not None and pattern is not None:
            self._bytes[found.order.ids] = found.order.sizes
            for token, number in self.special_tokens.items():
                self._bytes[number] = byte_length(token)
            self._ranked = RankedEncoder(found.order, pattern, self.special_tokens, workers=threads)
        else:
            self._library.stay_here()  # all texts are for it

    def _found(self, path: Path, added_tokens: Mapping[str, Any]) -> Compiled:
        """What the file is, as an earlier run found or anew."""
        try:
            data = path.read_bytes()
        except OSError:
            return self._library.describe()  # which says what is wrong
        key = compiling.key_of(data, added_tokens)
        found = compiling.recall(key)
        if found is None:
            order = compiling.order_of(data)
            found = compiling.with_ranks(self._library.describe(), order)
            compiling.keep(key, found)
        return found

    def encode(self, texts: Sequence[str]) -> list[UInt32]:
        if self._ranked is None:
            return self._library.encode(texts, affixes=False)
        found = self._ranked.encode(texts)
        left = [place for place, ids in enumerate(found) if ids is None]
        rest = iter(self._library.encode([texts[place] for place in left], affixes=False) if left else ())
        return [next(rest) if ids is None else ids for ids in found]

    def encode_with_affixes(self, texts: Sequence[str]) -> list[UInt32]:
        if self.affixes is None:
            return self._library.encode(texts, affixes=True)
        return self._between_affixes(self.encode(texts))

    def check_ids(self, texts: Sequence[str], *, affixed: bool) -> list[UInt32]:
        if affixed and self.affixes is None:
            return self._library.encode(texts, affixes=True)
        ids = self._library.encode(texts, affixes=False)
        return self._between_affixes(ids) if affixed else ids

    def end_checks(self) -> None:
        self._library.end()

    def _between_affixes(self, every: Sequence[UInt32]) -> list[UInt32]:
        before, after = self.affixes or ((), ())
        return [np.concatenate((before, ids, after)) for ids in every]

    def decode(self, ids: Sequence[int]) -> str:
        known = [number for number in ids if number < self.size]
        ranked = self._ranked.decode(known) if self._ranked is not None and self._decodes_bytes else None
        if ranked is not None:
            return ranked
        text: str = self._library.tokenizer.decode(known, skip_special_tokens=False)
        return text

    def token_ends(self, texts: Sequence[str], ids: Sequence[UInt32]) -> list[Int64]:
        if not self._byte_level:
            return [self._asked_ends(text) for text in texts]
        every = np.concatenate(ids) if ids else np.zeros(0, dtype=np.uint32)
        ends = np.cumsum(self._token_bytes(every), dtype=np.int64)
        found: list[Int64] = []
        start = before = 0
        for text, one in zip(texts, ids, strict=True):
            own = ends[start : start + len(one)]
            last = int(own[-1]) if len(own) else before
            # A normalizer may have changed the text: its tokens are not its bytes then.
            same = last - before == byte_length(text)
            found.append(own - before if same else self._asked_ends(text))
            start, before = start + len(one), last
        return found

    def _asked_ends(self, text: str) -> Int64:
        """Where the library says that tokens end; slow."""
        starts_at = _byte_positions(text)
        offsets = self._library.tokenizer.encode(text, add_special_tokens=False).offsets
        return starts_at[np.array([end for _, end in offsets], dtype=np.int64)]

    def _token_bytes(self, ids: UInt32) -> np.ndarray[Any, np.dtype[np.int32]]:
        known = self._bytes[ids]
        if (known == _UNKNOWN_BYTES).any():
            for number in np.unique(ids[known == _UNKNOWN_BYTES]).tolist():
                token = self._library.tokenizer.id_to_token(number) or ""
                # A byte-level token has one character per byte; an added token stands as itself.
                size = len(token.encode("utf-8")) if token in self.special_tokens else len(token)
                self._bytes[number] = size
            known = self._bytes[ids]
        return known

    def _affixes(
        self,
        post_processor: Mapping[str, Any] | None,
        add_bos_token: tuple[bool | None, str | None],
        add_eos_token: tuple[bool | None, str | None],
    ) -> tuple[UInt32, UInt32] | None:
        found = _template_affixes(post_processor)
        if found is None:
            return None
        sides: list[UInt32] = []
        for ids, (flag, token) in zip(found, (add_bos_token, add_eos_token), strict=True):
            if flag is False or (flag is True and token is None):
                ids = []
            elif flag is True and token is not None:
                number = self.special_tokens.get(token)
                number = self._library.tokenizer.token_to_id(token) if number is None else number
                ids = ids if number is None else [number]
            sides.append(np.array(ids, dtype=np.uint32))
        return sides[0], sides[1]


def _template_affixes(post_processor: Mapping[str, Any] | None) -> tuple[list[int], list[int]] | None:
    """Ids that a post-processor puts before and after a single text, None where it is of an unknown kind."""
    before: list[int] = []
    after: list[int] = []
    for part in flat(post_processor):
        if part["type"] == "ByteLevel":
            continue
        if part["type"] != "TemplateProcessing":
            return None
        inner_before: list[int] = []
        side = inner_before
        for item in part["single"]:
            if "Sequence" in item:
                side = after
            else:
                side.extend(part["special_tokens"][item["SpecialToken"]["id"]]["ids"])
        before = inner_before + before
    return before, after


def _byte_positions(text: str) -> Int64:
    """Byte position of every character, and of the end: int64[len(text) + 1]."""
    sizes = np.fromiter(
        (len(character.encode("utf-8")) for character in text), dtype=np.int64, count=len(text)
    )
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))
