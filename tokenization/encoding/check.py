"""Prompts encoded a second time, whole and by the vocabulary's own library, and compared with what was used."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from kvtune.tokenization.errors import KvtuneError
from kvtune.tokenization.tokenizers.vocabulary import Vocabulary
from kvtune.tokenization.trace import UInt32

_MAX_CHARS = 1 << 26
_CHARS_AT_A_TIME = 1 << 22


class CutMismatchError(KvtuneError):
    """The second time gave other ids: a defect of kvtune, not of the trace."""

    exit_code = 70


@dataclass
class Checked:
    """A prompt of the sample: its text, whether it got a BOS and the like, and the ids from its pieces."""

    request: str
    text: str
    affixed: bool
    ids: UInt32 | None = None


class CheckSample:
    """Draws `size` prompts evenly from a stream of unknown length, up to 64 MiB of text; None: all there are."""

    def __init__(self, size: int | None, seed: int) -> None:
        self._size = size
        self._random = random.Random(seed)
        self._seen = 0
        self._chars = 0
        self._drawn: list[Checked] = []
        self._compared = 0

    def draw(self, request: str, text: str, *, affixed: bool) -> Checked | None:
        """The place for this prompt's ids, or None where it is not drawn."""
        if self._size is None:
            self._chars += len(text)
            self._drawn.append(Checked(request, text, affixed))
            return self._drawn[-1]
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

    def compare_some(self, vocabulary: Vocabulary) -> None:
        """Where all are compared: those that have ids, once there are enough of them. Raises as `compare`."""
        if self._size is None and self._chars > _CHARS_AT_A_TIME:
            waiting = [one for one in self._drawn if one.ids is None]
            self._drawn = [one for one in self._drawn if one.ids is not None]
            self.compare(vocabulary)
            self._drawn = waiting
            self._chars = sum(len(one.text) for one in waiting)

    def compare(self, vocabulary: Vocabulary) -> int:
        """Encode what was drawn a second time; how many prompts were compared in all.

        Raises:
            CutMismatchError: some prompt's ids differ.
        """
        for affixed in (False, True):
            drawn = [one for one in self._drawn if one.affixed is affixed]
            again = vocabulary.check_ids([one.text for one in drawn], affixed=affixed) if drawn else []
            for one, ids in zip(drawn, again, strict=True):
                if one.ids is None or not np.array_equal(one.ids, ids):
                    raise CutMismatchError(
                        "encoding a prompt in pieces gave other ids than encoding it whole",
                        where=f"request {one.request}",
                        way_out="please report it with the tokenizer's name; --encoder library goes the long way",
                    )
        self._compared += len(self._drawn)
        self._drawn = []
        return self._compared
