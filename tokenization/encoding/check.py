"""A sample of prompts that is encoded a second time, whole, and compared with what the pieces gave."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from kvtune.tokenization.errors import KvtuneError
from kvtune.tokenization.tokenizers.vocabulary import Vocabulary
from kvtune.tokenization.trace import UInt32

_MAX_CHARS = 1 << 26


class CutMismatchError(KvtuneError):
    """Pieces gave other ids than the whole text: a defect of kvtune, not of the trace."""

    exit_code = 70


@dataclass
class Checked:
    """A prompt of the sample: its text, whether it got a BOS and the like, and the ids from its pieces."""

    request: str
    text: str
    affixed: bool
    ids: UInt32 | None = None


class CheckSample:
    """Draws `size` prompts evenly from a stream of unknown length, up to 64 MiB of text."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._random = random.Random(seed)
        self._seen = 0
        self._chars = 0
        self._drawn: list[Checked] = []

    def draw(self, request: str, text: str, *, affixed: bool) -> Checked | None:
        """The place for this prompt's ids, or None where it is not drawn."""
        self._seen += 1
        at = len(self._drawn)
        if at >= self._size:
            at = self._random.randrange(self._seen)
            if at >= self._size:
                return None
        replaced = len(self._drawn[at].text) if at < len(self._drawn) else 0
        if self._chars + len(text) - replaced > _MAX_CHARS:
            return None
        self._chars += len(text) - replaced
        drawn = Checked(request, text, affixed)
        self._drawn[at : at + 1] = [drawn]
        return drawn

    def compare(self, vocabulary: Vocabulary) -> int:
        """Encode the sample whole; how many prompts were compared.

        Raises:
            CutMismatchError: some prompt's ids differ.
        """
        for affixed, encode in ((False, vocabulary.encode), (True, vocabulary.encode_with_affixes)):
            drawn = [one for one in self._drawn if one.affixed is affixed]
            for one, ids in zip(drawn, encode([one.text for one in drawn]) if drawn else [], strict=True):
                if one.ids is None or not np.array_equal(one.ids, ids):
                    raise CutMismatchError(
                        "encoding a prompt in pieces gave other ids than encoding it whole",
                        where=f"request {one.request}",
                        way_out="please report it with the tokenizer's name",
                    )
        return len(self._drawn)
