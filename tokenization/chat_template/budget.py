"""How much one rendering may do: loop steps, characters moved, and CPU seconds as a last resort.

A chat template is code from elsewhere. The sandbox keeps it away from the machine; this keeps it from
running for ever or filling the memory. The step and character limits are counts, so that the same template
and request are refused on every machine; the deadline only backs them up where steps are slow that are not
counted (comparing or slicing a long text again and again).

Lists that hold the same list twice, and that again twice, are small in memory and endless when written, compared
or hashed. So a container is charged for all that it holds, repeated parts each time, when it is built.
Knows sizes of values; nothing about templates' syntax.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2 import TemplateError
from jinja2.utils import Namespace

MAX_OUTPUT_CHARS = 1 << 25
"""Longest prompt text, and longest string that a template may build; a list counts 8 an item."""

MAX_STEPS = 2_000_000
"""Loop iterations, items of built containers, and calls (8 each) of one rendering, beside 4 per pair of messages."""

MAX_CHARS = 1 << 28
"""Characters written, joined or copied in one rendering, beside 64 per character of the request."""

MAX_SECONDS = 5.0
"""CPU seconds of one rendering."""

CALL_STEPS = 8
_MAX_NUMBER = 1 << 20  # widths, indents and counts
_STEPS_PER_CHECK = 128
_SIZED = frozenset({dict, list, str, tuple})
_MAX_BITS = 1 << 14
_WIDE_FIELD = re.compile(r"[0-9]{7}")


class TemplateLimitError(TemplateError):
    """A template asked for more work or text than a prompt can need."""


class Budget:
    """What is left of the limits for one rendering. Every method raises `TemplateLimitError` when spent."""

    __slots__ = ("_deadline", "_next_check", "_request_chars", "chars", "steps")

    def __init__(self, *, messages: int = 0, request_chars: Callable[[], int] | None = None) -> None:
        self.steps = MAX_STEPS + 4 * messages * messages
        self.chars = MAX_CHARS
        self._request_chars = request_chars
        self._deadline = time.thread_time() + MAX_SECONDS
        self._next_check = self.steps - _STEPS_PER_CHECK

    def step(self, count: int = 1, chars: int = 0) -> None:
        """Charge loop iterations or calls, and the fixed text that they write."""
        self.steps -= count
        self.chars -= chars
        if self.steps < self._next_check:
            if self.steps < 0:
                raise TemplateLimitError("too many loop steps")
            if time.thread_time() > self._deadline:
                raise TemplateLimitError("rendering takes too long")
            self._next_check = self.steps - _STEPS_PER_CHECK
        if self.chars < 0:
            self._extend()

    def text(self, count: int) -> None:
        """Charge `count` characters of one value."""
        self.chars -= count
        if count > MAX_OUTPUT_CHARS:
            raise TemplateLimitError("too much text")
        if self.chars < 0:
            self._extend()

    def _extend(self) -> None:
        """Grant what a large request may cost, once: it is measured only when the common limit is spent."""
        if self._request_chars is not None:
            self.chars += 64 * self._request_chars()
            self._request_chars = None
        if self.chars < 0:
            raise TemplateLimitError("too much text")

    def items(self, count: int) -> None:
        """Charge a list of `count` items."""
        self.text(8 * count)

    def product(self, *factors: int) -> None:
        """Charge a size that is a product, before anything is allocated."""
        size = 1
        for factor in factors:
            size *= max(factor, 1)
        self.text(size)

    def number(self, value: Any) -> None:
        """Refuse a width, indent or count that no prompt needs."""
        if isinstance(value, (int, float)) and not -_MAX_NUMBER <= value <= _MAX_NUMBER:
            raise TemplateLimitError("a number is too large")

    def format_spec(self, spec: str, values: Iterable[Any]) -> None:
        """Refuse field widths that write megabytes (`%9999999d`, `{:9999999}`, `%*d`, `{:{}}`)."""
        self.text(len(spec))
        if _WIDE_FIELD.search(spec):
            raise TemplateLimitError("a field is too wide")
        if "*" in spec or "{" in spec:
            for value in values:
                self.number(value)

    def value(self, value: Any) -> int:
        """Charge what writing `value` out would take, nested containers included; the number of its items.

        Containers that hold the same list many times grow exponentially when written; the walk stops as soon
        as the limit is reached, so it is no dearer than the budget that is left.
        """
        if type(value) is str:
            self.text(len(value))
            return 1
        stack = [value]
        count = 0
        while stack:
            item = stack.pop()
            count += 1
            if isinstance(item, str):
                self.text(len(item))
            elif isinstance(item, dict):
                self.step(len(item))
                stack.extend(item.keys())
                stack.extend(item.values())
            elif isinstance(item, (list, tuple)):
                self.step(len(item) + 1)
                stack.extend(item)
            elif isinstance(item, Namespace):
                stack.append(object.__getattribute__(item, "_Namespace__attrs"))
                self.step()
            elif isinstance(item, int) and item.bit_length() > _MAX_BITS:
                raise TemplateLimitError("a number is too large")
        return count

    def ticks(self, iterable: Iterable[Any], chars: int) -> Iterable[Any]:
        """`iterable`, charged per iteration of a loop whose body writes `chars` fixed characters."""
        if type(iterable) in _SIZED:
            size = len(iterable)  # type: ignore[arg-type]
            self.step(size, size * chars)
            return iterable
        return self._counted(iterable, chars)

    def _counted(self, iterable: Iterable[Any], chars: int) -> Iterator[Any]:
        for item in iterable:
            self.step(1, chars)
            yield item


def size_of(value: Any) -> int:
    """Characters in the strings of a tree of JSON values, iteratively. The tree came from one parsed line."""
    total = 0
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return total
