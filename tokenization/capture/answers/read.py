"""Chooses how to read an answer by the endpoint that gave it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kvtune.tokenization.capture.answers.answer import Answer, NotUnderstoodError
from kvtune.tokenization.capture.answers.chat import join_chunks, read_completion
from kvtune.tokenization.capture.answers.messages import join_blocks, read_message
from kvtune.tokenization.capture.answers.responses import last_response, read_response

_Reader = Callable[[bytes], Answer]

# Endpoint -> how to read a whole answer, how to read a stream. What stands here is what a capture records.
ENDPOINTS: dict[str, tuple[_Reader, _Reader]] = {
    "/chat/completions": (read_completion, join_chunks),
    "/completions": (read_completion, join_chunks),
    "/responses": (read_response, last_response),
    "/v1/messages": (read_message, join_blocks),
}


def read_answer(path: str, body: bytes, *, streamed: bool) -> Answer:
    """What was said in an answer; a stream that was cut gives what had been said by then.

    Args:
        path: the request's path, which ends in one of `ENDPOINTS`.
        body: the answer's bytes, uncompressed.
        streamed: `body` is a server-sent event stream.

    Raises:
        NotUnderstoodError: anything but the endpoint's own shape.
    """
    whole, stream = next(readers for endpoint, readers in ENDPOINTS.items() if path.endswith(endpoint))
    try:
        return stream(body) if streamed else whole(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NotUnderstoodError(type(error).__name__) from error
