"""The tool lists of requests, written as the engine writes them, one object per distinct list."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from kvtune.tokenization.chat_template.messages import dump_tool

_MAX_BYTES = 1 << 25


@dataclass(frozen=True)
class ToolSet:
    """Tools as a template sees them, and two names: hex digits of a SHA-256 over them.

    `digest`: as they are ordered. `unordered`: whatever the order of the tools and of their fields.
    """

    tools: list[Any]
    digest: str
    unordered: str


class ToolSets:
    """Remembers distinct tool lists, up to a number of bytes, then forgets them all."""

    def __init__(self, keep: Callable[[Any], None]) -> None:
        """`keep` is told of every tool of a list that is handed out."""
        self._keep = keep
        self._known: dict[bytes, ToolSet] = {}
        self._bytes = 0
        self._last: tuple[Any, ToolSet | None] = (None, None)

    def of(self, tools: list[dict[str, Any]] | None) -> ToolSet | None:
        """The set of a request; None where it has no tools (an empty list counts as none)."""
        if not tools:
            return None
        if self._last[0] is tools:  # the same request, asked again
            return self._last[1]
        key = msgspec.json.encode(tools)
        known = self._known.get(key)
        if known is None:
            known = ToolSet(
                [dump_tool(tool) for tool in tools], hashlib.sha256(key).hexdigest()[:6], _unordered(tools)
            )
            self._bytes += len(key)
            if self._bytes > _MAX_BYTES:
                self._known.clear()
                self._bytes = len(key)
            self._known[key] = known
        self._last = (tools, known)
        for tool in known.tools:
            self._keep(tool)
        return known


def _unordered(tools: list[dict[str, Any]]) -> str:
    """A name that tools keep when a client shuffles them."""
    each = sorted(msgspec.json.encode(tool, order="sorted") for tool in tools)
    return hashlib.sha256(b"\n".join(each)).hexdigest()[:16]
