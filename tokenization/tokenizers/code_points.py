"""Code points that two libraries' Unicode tables call the same: letters, marks, digits, spaces.

`tokenizers` and `tiktoken` split words by the same patterns, with regular expressions of different makers. What a
pattern asks of a character is whether it belongs to one of a few classes; each character that a trace holds is asked
about once, in both libraries as they are installed. Knows characters; no texts are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiktoken import Encoding

CLASSES = (
    *(rf"\p{{{name}}}" for name in ("L", "M", "N", "Lu", "Ll", "Lt", "Lm", "Lo")),
    r"\s",
    r"(?i:s|t|r|e|v|m|l|d)",
)
"""Every class that one of `line_cuts.PATTERNS` names: those of their brackets, and the letters of contractions."""


class KnownCodePoints:
    """Remembers which characters both libraries agree on."""

    def __init__(self) -> None:
        self._agreed: set[str] = set()
        self._disputed: set[str] = set()

    def admitted(self, texts: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Place and text of those that hold only characters agreed on, and that NFC leaves as they are."""
        self._learn({one for text in texts if not text.isascii() for one in text})
        for place, text in enumerate(texts):
            if text.isascii() or (self._disputed.isdisjoint(text) and _is_normal(text)):
                yield place, text

    def _learn(self, characters: set[str]) -> None:
        new = characters - self._agreed - self._disputed
        if new:
            disputed = disputed_of("".join(sorted(new)))
            self._disputed |= disputed
            self._agreed |= new - disputed


def disputed_of(characters: str) -> set[str]:
    """Those of some distinct characters that belong to a class by one library and not by the other."""
    surrogates = {one for one in characters if 0xD800 <= ord(one) < 0xE000}
    asked = "".join(one for one in characters if one not in surrogates)
    disputed = surrogates
    for pattern in CLASSES:
        disputed |= _by_tiktoken(pattern, asked) ^ _by_tokenizers(pattern, asked)
    return disputed


def _by_tokenizers(pattern: str, characters: str) -> set[str]:
    from tokenizers import Regex, pre_tokenizers

    others = pre_tokenizers.Split(Regex(pattern), behavior="removed").pre_tokenize_str(characters)
    return set(characters) - {one for text, _ in others for one in text}


def _by_tiktoken(pattern: str, characters: str) -> set[str]:
    """It leaves out what no word of its pattern matches."""
    return set(bytes(_of_bytes(pattern).encode_ordinary(characters)).decode())


@lru_cache(len(CLASSES))
def _of_bytes(pattern: str) -> Encoding:
    """An encoding whose ids are the bytes of what the pattern matches."""
    from tiktoken import Encoding

    ranks = {bytes([byte]): byte for byte in range(256)}
    return Encoding("bytes", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def _is_normal(text: str) -> bool:
    from tokenizers import normalizers

    normal: str = normalizers.NFC().normalize_str(text)
    return normal == text
