"""One turn logged twice: under one id, or by a client that mistrusts a proxied stream and asks again without one.

Such a pair is an artefact of the logging proxy (claude-code-proxy, pull request 33), and the repeat would look
like a perfect cache hit; it is told by an equal prompt, close by, with the other value of `stream`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from kvtune.tokenization.formats.format import Draft
from kvtune.tokenization.request import Request

_MOST_REPEATED = 0.5  # of all ids; a file with fewer ids than half its requests names something else by them
_NEAR = 32  # requests of other sessions that may stand between the two


class StreamPairs:
    """Remembers the last requests of a file that said whether they stream."""

    def __init__(self) -> None:
        self._last: deque[tuple[bool, Request]] = deque(maxlen=_NEAR)

    def is_repeat(self, draft: Draft) -> bool:
        """Whether this is the other half of a request that was seen; each has one other half."""
        if draft.stream is None:
            return False
        for entry in self._last:
            stream, request = entry
            if stream != draft.stream and _same_prompt(request, draft.request):
                self._last.remove(entry)
                return True
        self._last.append((draft.stream, draft.request))
        return False


def logged_twice(requests: Sequence[Request]) -> Iterator[Request]:
    """Requests that repeat the id and the prompt of one before them, in a file whose ids name calls."""
    first: dict[str, Request] = {}
    repeats = []
    for request in requests:
        before = first.setdefault(request.id, request)
        if before is not request and _same_prompt(before, request):
            repeats.append(request)
    if len(first) >= _MOST_REPEATED * len(requests):
        yield from repeats


def _same_prompt(one: Request, other: Request) -> bool:
    return (
        one.session == other.session
        and one.identity == other.identity
        and one.text == other.text
        and one.token_ids == other.token_ids
        and one.block_hashes == other.block_hashes
        and one.messages == other.messages
        and one.tools == other.tools
    )
