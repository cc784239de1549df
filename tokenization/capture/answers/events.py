"""Server-sent events: lines to the data of each event. Knows nothing of what the data means."""

from __future__ import annotations

from collections.abc import Iterator


def events(stream: bytes) -> Iterator[bytes]:
    """The data of each event of a server-sent event stream, `[DONE]` left out.

    Lines, comments and multi-line data as in the WHATWG standard; a last event without its blank line is
    unfinished and therefore no event.
    """
    data: list[bytes] = []
    for line in stream.splitlines():
        if not line:
            if data and data != [b"[DONE]"]:
                yield b"\n".join(data)
            data = []
        elif line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
