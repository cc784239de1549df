"""What may be said of varying text: its class, and the text itself only where the user asked for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvtune.analyzers.text_class import classify
from kvtune.tokenization.trace import UInt32

Decode = Callable[[Sequence[int]], str]

_BEFORE, _AFTER = 16, 4
_SAMPLES = 24
_SHOWN_CHARS = 60


@dataclass(frozen=True)
class Wording:
    """`decode` gives the text of ids, None where no vocabulary is at hand; `show_text` lets reports quote it."""

    decode: Decode | None = None
    show_text: bool = False

    def text(self, ids: UInt32) -> str | None:
        """The text of some ids; None without a vocabulary."""
        return None if self.decode is None else self.decode(ids.tolist())

    def class_of(self, spans: Sequence[tuple[UInt32, int, int]]) -> str:
        """The most frequent class of tokens [start, end) of prompts, seen with the text around them."""
        if self.decode is None:
            return "text"
        step = max(1, len(spans) // _SAMPLES)
        return Counter(self._class(*span) for span in spans[::step]).most_common(1)[0][0]

    def quote(self, ids: UInt32) -> str:
        """` ("...")`, or nothing where text is not to be shown."""
        text = self.text(ids[:_SHOWN_CHARS]) if self.show_text else None
        return "" if not text else f' ("{text[:_SHOWN_CHARS]}")'

    def _class(self, prompt: UInt32, start: int, end: int) -> str:
        assert self.decode is not None
        before = self.decode(prompt[max(start - _BEFORE, 0) : start].tolist())
        inside = self.decode(prompt[start:end].tolist())
        after = self.decode(prompt[end : end + _AFTER].tolist())
        return classify(before + inside + after, len(before), len(before) + len(inside))
