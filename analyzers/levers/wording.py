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

    def fields_of(self, spans: Sequence[tuple[UInt32, int, int]]) -> tuple[str, ...]:
        """The classes of all lines of tokens [start, end) that differ between prompts, in their order; one name at
        least."""
        if self.decode is None:
            return ("text",)
        step = max(1, len(spans) // _SAMPLES)
        lines: list[list[tuple[str, int, int]]] = []
        for prompt, start, end in spans[::step]:
            before = self.decode(prompt[max(start - _BEFORE, 0) : start].tolist())
            inside = self.decode(prompt[start:end].tolist())
            text = before + inside + self.decode(prompt[end : end + _AFTER].tolist())
            at, own = len(before), []
            for line in inside.split("\n"):
                own.append((text, at, at + len(line)))
                at += len(line) + 1
            lines.append(own)
        if len({len(own) for own in lines}) > 1:
            return (self.class_of(spans),)
        names = []
        for column in zip(*lines, strict=True):
            values = {text[start:end] for text, start, end in column}
            if len(values) > 1:
                names.append(Counter(classify(*place) for place in column).most_common(1)[0][0])
        return tuple(names) or (self.class_of(spans),)

    def quote_both(self, one: UInt32, other: UInt32) -> str:
        """` ("...", in another request "...")`, or nothing where text is not to be shown."""
        texts = [self.text(ids[:_SHOWN_CHARS]) if self.show_text else None for ids in (one, other)]
        if not texts[0] or not texts[1]:
            return self.quote(one)
        return f' ("{texts[0][:_SHOWN_CHARS]}", in another request "{texts[1][:_SHOWN_CHARS]}")'

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
