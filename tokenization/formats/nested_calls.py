"""Calls that two spans of a file tell of: a framework's span around its client's, a stream's start and its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from kvtune.tokenization.request import Request

_MOST_NESTED = 64
_NEAR = 32  # calls that may stand between the two records of one stream


class NestedCalls:
    """Remembers which span is whose parent, and which span a request came from."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}
        self._span_of: dict[int, str] = {}  # identity of a request -> span
        self._by_span: dict[str, int] = {}

    def saw(self, span: str | None, parent: str | None) -> None:
        """Every span of the file, calls or not: a chain of parents leads through them."""
        if span is not None and parent is not None:
            self._parents[span] = parent

    def took(self, span: str | None, request: Request) -> None:
        """A span that gave a request."""
        if span is not None:
            self._span_of[id(request)] = span
            self._by_span[span] = id(request)

    def repeats(self, requests: Sequence[Request]) -> Iterator[Request]:
        """The requests to leave out: outer spans of a call that has an inner one, and starts of streams that ended.

        A start gives its time to the record of the end, which holds the answer.
        """
        outer = {
            self._by_span[above]
            for request in requests
            for above in self._above(self._span_of.get(id(request)))
            if above in self._by_span
        }
        begun: deque[Request] = deque(maxlen=_NEAR)
        for request in requests:
            if id(request) in outer:
                yield request
                continue
            if request.output is None and request.output_tokens is None:
                begun.append(request)
                continue
            start = next((one for one in begun if _same_prompt(one, request)), None)
            if start is not None:
                begun.remove(start)
                request.arrival = request.arrival if start.arrival is None else start.arrival
                yield start

    def _above(self, span: str | None) -> Iterator[str]:
        for _ in range(_MOST_NESTED):
            span = self._parents.get(span) if span is not None else None
            if span is None:
                return
            yield span


def _same_prompt(one: Request, other: Request) -> bool:
    return (
        one.identity == other.identity
        and one.messages == other.messages
        and one.text == other.text
        and one.tools == other.tools
    )
