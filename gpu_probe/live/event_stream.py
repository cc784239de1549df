"""Server-sent events out of a byte stream: the data of each event, however the bytes were cut.

Lines end with LF or CRLF and nothing else; UTF-8 is left to whoever reads the data. Knows no JSON.
"""

from __future__ import annotations

from kvtune.tokenization.errors import MissingDependencyError

MAX_EVENT_BYTES = 64 << 20


class EventSplitter:
    """Feed it chunks as they come."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of all events that end in this chunk.

        Raises:
            MissingDependencyError: an event that is longer than any server's.
        """
        self._rest += chunk
        if len(self._rest) + self._size > MAX_EVENT_BYTES:
            raise MissingDependencyError(
                "an event of the answer is too long", wanted=f"at most {MAX_EVENT_BYTES} bytes"
            )
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data, self._size = [], 0
            elif line.startswith(b"data:"):
                self._data.append(bytes(line[5:].removeprefix(b" ")))
                self._size += len(line)
        return events
