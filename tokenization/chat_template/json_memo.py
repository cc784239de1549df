"""A memory of `tojson` for values that many requests share: tool schemas and parsed arguments."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

_MAX_CHARS = 1 << 25
_MAX_KEPT = 1 << 16


class JsonMemo:
    """Texts by the identity of the value and the options of the dump.

    Only values that the caller keeps are remembered, and they are held here as long as their texts are, so an
    identity is never taken over by another object. Nothing may change a kept value; the template sandbox does not.
    """

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}
        self._texts: dict[tuple[int, Hashable], str] = {}
        self._written: dict[int, str] = {}
        self._chars = 0

    def keep(self, value: Any) -> None:
        """Remember dumps of this very object from now on."""
        if len(self._kept) >= _MAX_KEPT:
            self._forget()
        self._kept[id(value)] = value

    def begin(self) -> None:
        """A rendering begins: nothing is written yet."""
        self._written.clear()

    def get(self, value: Any, options: Hashable) -> str | None:
        """The dump, if it is known; it is written then."""
        text = self._texts.get((id(value), options))
        if text is not None:
            self._written[id(value)] = text
        return text

    def put(self, value: Any, options: Hashable, text: str) -> None:
        """Note a dump; it is remembered if the value is kept."""
        self._written[id(value)] = text
        if self._kept.get(id(value)) is not value:
            return
        self._chars += len(text)
        if self._chars > _MAX_CHARS:
            self._forget()
            return
        self._texts[(id(value), options)] = text

    def _forget(self) -> None:
        self._texts.clear()
        self._kept.clear()
        self._chars = 0

    def texts_of(self, values: list[Any]) -> list[str]:
        """What this rendering wrote of each of the values that it wrote, in their order, or of their list as a whole.

        All are alive.
        """
        whole = self._written.get(id(values))
        if whole is not None:
            return [whole]
        return [text for value in values if (text := self._written.get(id(value))) is not None]
