"""Bodies in vLLM's own log (0.31 and later): what clients sent, on a line of its own before the request's others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kvtune.tokenization.clock import Moment
from kvtune.tokenization.formats.bodies import read_body
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Place
from kvtune.tokenization.formats.nested import as_json
from kvtune.tokenization.formats.outcome import OTHER_OPERATION, outcome
from kvtune.tokenization.formats.responses_history import with_history
from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.request import Identity, Request

BODY_LINE = re.compile(r"Request (?P<id>\S{1,200}) JSON body: ")
_ENDPOINT = re.compile(r"(?:chatcmpl|cmpl|resp|msg|embd|pool|score|rerank|classify)[-_]")
_PROMPT_NUMBER = re.compile(r"-\d{1,6}$")


class LoggedBodies:
    """The requests whose bodies one log showed, by id; the log's other lines put the endpoint's name before it."""

    def __init__(self) -> None:
        self._requests: dict[str, list[Request]] = {}
        self._pooled: list[Request] = []

    def read(self, text: str, name: str, time: Moment | None, place: Place) -> Iterable[Draft]:
        """The requests of a body line.

        Raises:
            RecordError: a body that the log cut, or that holds no prompt.
        """
        body: Any = as_json(text)
        if not isinstance(body, dict):
            raise RecordError(
                "truncated_prompt",
                "JSON body",
                found="JSON that ends too early",
                wanted="whole bodies (no --max-log-len)",
            )
        if outcome(body) == OTHER_OPERATION:
            place.file.note(OTHER_OPERATION)
            return []
        origin = origin_of(body, place, id=name if name != "N/A" else place.where, time=time)
        drafts = list(read_body(with_history(body, None, place), origin, ""))
        self._requests[_plain(name)] = [draft.request for draft in drafts]
        return drafts

    def of(self, name: str) -> list[Request] | None:
        """The requests of the body of this id; None where the log showed none."""
        plain = _plain(name)
        found = self._requests.get(plain)
        return found if found is not None else self._requests.get(_PROMPT_NUMBER.sub("", plain))

    def adapt(self, requests: list[Request], lora: str, path: str | None, place: Place) -> None:
        """Gives requests the adapter that a later line names."""
        for request in requests:
            known = request.identity
            request.identity = place.file.shared(
                Identity(known.model, lora, path, known.cache_salt, known.tenant)
            )

    def pool(self, requests: list[Request]) -> None:
        """What a later line shows to be an embedding or the like."""
        self._pooled += requests

    def pooled(self) -> list[Request]:
        """All of those."""
        return self._pooled


def _plain(name: str) -> str:
    return _ENDPOINT.sub("", name, count=1)
