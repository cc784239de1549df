"""What a vocabulary must offer, whatever library holds it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from kvtune.tokenization.trace import Int64, UInt32


@dataclass(frozen=True)
class CutRules:
    """Where a text may be cut so that the ids of the pieces, one after another, are those of the whole.

    Attributes:
        tokens: special tokens at which cutting is exact, with their ids.
        lines: whether cutting after a newline before a printable ASCII character (no "/") is exact too.
        why_whole: why no cut is known to be exact, None where `tokens` may be used.
    """

    tokens: dict[str, int] = field(default_factory=dict)
    lines: bool = False
    why_whole: str | None = None


class Vocabulary(Protocol):
    """A loaded vocabulary; one copy serves all workers.

    Attributes:
        kind: "hf" or "tiktoken", as in the report. source: file or name it came from.
        size: the first id above every token's.
        cuts: where its texts may be cut.
        affixes: ids that a completions prompt gets before and after its own (a BOS, for most), None where
            only encoding the whole text tells.
        special_tokens: special tokens by text, with their ids.
    """

    kind: Literal["hf", "tiktoken"]
    source: str
    size: int
    cuts: CutRules
    affixes: tuple[UInt32, UInt32] | None
    special_tokens: dict[str, int]

    def encode(self, texts: Sequence[str]) -> list[UInt32]:
        """Ids of each text, special tokens in the text recognised, none added. Uses all workers."""

    def encode_with_affixes(self, texts: Sequence[str]) -> list[UInt32]:
        """Ids of each text as a completions prompt (`add_special_tokens=True`)."""

    def check_ids(self, texts: Sequence[str], *, affixed: bool) -> list[UInt32]:
        """What `encode` (or `encode_with_affixes`) must give, by the library that the file is made for."""

    def end_checks(self) -> None:
        """Let go of what only `check_ids` needs."""

    def token_ends(self, texts: Sequence[str], ids: Sequence[UInt32]) -> list[Int64]:
        """Where each token of each text ends, int64[len(its ids)], ascending, in UTF-8 bytes of the text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included; cut characters become U+FFFD, unknown ids nothing."""


def byte_length(text: str) -> int:
    """Of a text in UTF-8; most texts are ASCII and need not be encoded for it."""
    return len(text) if text.isascii() else len(text.encode("utf-8"))


def claimable(tokens: Collection[str]) -> set[str]:
    """The special tokens of which another could claim a part of the characters, wherever they stand in a text.

    Matching is leftmost, then longest. Another token takes characters of this one when it contains it, or when
    its end is this one's beginning. Tokens that this one begins earlier than lose to it and do not matter.
    """
    known = set(tokens)
    sizes = sorted({len(token) for token in known})
    by_beginning: dict[str, list[str]] = {}
    for token in known:
        for size in range(1, len(token)):
            by_beginning.setdefault(token[:size], []).append(token)
    claimed: set[str] = set()
    for token in known:
        for start in range(len(token)):
            if start:
                claimed.update(other for other in by_beginning.get(token[start:], ()) if other != token)
            for size in sizes:
                if size >= len(token) or start + size > len(token):
                    break
                if token[start : start + size] in known:
                    claimed.add(token[start : start + size])
    return claimed
