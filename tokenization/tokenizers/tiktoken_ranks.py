"""Vocabularies of byte-pair ranks, through the library `tiktoken`: by name, or from a `.tiktoken` file.

A file holds ranks only. Its pattern and special tokens come from the encoding that its name says
(`cl100k_base.tiktoken`, or its key in a cache folder of `tiktoken`).
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.small_file import read_small_file
from kvtune.tokenization.tokenizers.line_cuts import CL100K_TIKTOKEN, O200K, PATTERNS
from kvtune.tokenization.tokenizers.vocabulary import CutRules, claimable
from kvtune.tokenization.trace import Int64, UInt32

if TYPE_CHECKING:
    from tiktoken import Encoding


@dataclass(frozen=True)
class _Known:
    """What a file of ranks leaves out. `cache_key` is the file's name in a cache folder of `tiktoken`."""

    pattern: str
    special_tokens: dict[str, int]
    cache_key: str


_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_KNOWN = {
    "r50k_base": _Known(_GPT2, {"<|endoftext|>": 50256}, "0ea1e91bbb3a60f729a8dc8f777fd2fc07cd8df4"),
    "p50k_base": _Known(_GPT2, {"<|endoftext|>": 50256}, "ec7223a39ce59f226a68acc30dc1af2788490e15"),
    "cl100k_base": _Known(
        CL100K_TIKTOKEN,
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
    ),
    "o200k_base": _Known(
        O200K,
        {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
        "fb374d419588a4632f3f557e76b4b70aebbca790",
    ),
}

_TEXTS_PER_TASK = 64
_MAX_RANKS_BYTES = 1 << 28


class TiktokenVocabulary:
    """A `Vocabulary` over one `tiktoken.Encoding`; its threads share it."""

    kind: Literal["hf", "tiktoken"] = "tiktoken"

    def __init__(self, encoding: Encoding, source: str, *, workers: int | None = None) -> None:
        self._encoding = encoding
        self._workers = workers or os.cpu_count() or 1
        self.source = source
        self.size = encoding.n_vocab
        specials = {token: encoding.encode_single_token(token) for token in encoding.special_tokens_set}
        self.special_tokens = specials
        claimed = claimable(specials)
        tokens = {token: number for token, number in sorted(specials.items()) if token not in claimed}
        self.cuts = CutRules(
            tokens=tokens,
            lines=encoding._pat_str in PATTERNS and not any("\n" in token for token in specials),
            why_whole=None if tokens else "no special token that stands for itself in every surrounding",
        )
        nothing = np.zeros(0, dtype=np.uint32)
        self.affixes: tuple[UInt32, UInt32] | None = (nothing, nothing)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._workers, thread_name_prefix="tiktoken")

    def encode(self, texts: Sequence[str]) -> list[UInt32]:
        chunks = [texts[start : start + _TEXTS_PER_TASK] for start in range(0, len(texts), _TEXTS_PER_TASK)]
        if len(chunks) < 2 or self._workers < 2:
            return self._encode_chunk(texts)
        return [ids for chunk in self._pool.map(self._encode_chunk, chunks) for ids in chunk]

    def _encode_chunk(self, texts: Sequence[str]) -> list[UInt32]:
        return [
            self._encoding.encode_to_numpy(text, allowed_special="all").astype(np.uint32) for text in texts
        ]

    def encode_with_affixes(self, texts: Sequence[str]) -> list[UInt32]:
        return self.encode(texts)

    def check_ids(self, texts: Sequence[str], *, affixed: bool) -> list[UInt32]:  # noqa: ARG002
        return self.encode(texts)

    def end_checks(self) -> None:
        """Nothing: it is the same library."""

    def decode(self, ids: Sequence[int]) -> str:
        return self._encoding.decode([number for number in ids if number < self.size])

    def token_ends(self, texts: Sequence[str], ids: Sequence[UInt32]) -> list[Int64]:  # noqa: ARG002
        tokens = self._encoding.decode_tokens_bytes
        return [np.cumsum([len(token) for token in tokens(one.tolist())], dtype=np.int64) for one in ids]


def named_encoding(name: str, *, workers: int | None = None) -> TiktokenVocabulary:
    """The encoding, or the encoding of the model, of that name.

    `tiktoken` reads it from `TIKTOKEN_CACHE_DIR` where that holds it.

    Raises:
        UnusableInputError: unknown name, or its ranks are not at hand.
    """
    import tiktoken

    try:
        if name in tiktoken.list_encoding_names():
            encoding = tiktoken.get_encoding(name)
        else:
            encoding = tiktoken.encoding_for_model(name)
    except KeyError as error:
        raise UnusableInputError(
            "unknown tiktoken name",
            field="--tokenizer",
            found=name[:80],
            wanted=f"one of {', '.join(tiktoken.list_encoding_names())}, or a model's name",
        ) from error
    except Exception as error:  # whatever its download raises: no network, a full disk, a wrong digest
        raise UnusableInputError(
            "the ranks are not at hand",
            field="--tokenizer",
            found=f"tiktoken:{name}, {type(error).__name__}",
            way_out="put the file into the folder that TIKTOKEN_CACHE_DIR names, or give the file itself",
        ) from error
    return TiktokenVocabulary(encoding, f"tiktoken:{name}", workers=workers)


def ranks_file(path: Path, *, workers: int | None = None) -> TiktokenVocabulary:
    """A `.tiktoken` file (base64 bytes and a rank a line), or a cache folder of `tiktoken` that holds one.

    Raises:
        UnusableInputError: not such a file, or neither its name nor its cache key says its pattern.
    """
    import tiktoken

    if path.is_dir():
        path = _cached_file(path)
    name = next((n for n, known in _KNOWN.items() if path.stem == n or path.name == known.cache_key), None)
    if name is None:
        raise UnusableInputError(
            "a file of ranks does not say how to split words",
            where=str(path),
            wanted=f"one of {', '.join(_KNOWN)} as its name",
            way_out="rename the file, or give a folder with a tokenizer.json",
        )
    encoding = tiktoken.Encoding(
        name,
        pat_str=_KNOWN[name].pattern,
        mergeable_ranks=_read_ranks(path),
        special_tokens=_KNOWN[name].special_tokens,
    )
    return TiktokenVocabulary(encoding, str(path), workers=workers)


def _cached_file(folder: Path) -> Path:
    found = [folder / known.cache_key for known in _KNOWN.values() if (folder / known.cache_key).is_file()]
    found += sorted(folder.glob("*.tiktoken"))
    if len(found) != 1:
        raise UnusableInputError(
            "cannot tell which ranks to use",
            where=str(folder),
            found=f"{len(found)} files of ranks",
            wanted="one",
            way_out="give the file, or tiktoken:NAME with TIKTOKEN_CACHE_DIR",
        )
    return found[0]


def _read_ranks(path: Path) -> dict[bytes, int]:
    lines = read_small_file(path, _MAX_RANKS_BYTES, "a file of ranks").splitlines()
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            raise UnusableInputError(
                "not a line of ranks", where=f"{path}:{number}", wanted="base64 and a number"
            ) from error
    return ranks
