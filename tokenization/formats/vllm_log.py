"""vLLM's own request log, old lines (prompt at INFO) and new ones (prompt at DEBUG, as "details").

The log shortens prompts with `--max-log-len`; a shortened prompt is refused as such, for a prefix cut to a
hundred characters would look shared. Its times have no year: they count from a year's start, as UTC.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from kvtune.tokenization.clock import Moment, moment
from kvtune.tokenization.containers.server_log import LOG_MESSAGE, LOG_TIME, LogRecord
from kvtune.tokenization.formats.drafts import Origin, checked_ids, draft
from kvtune.tokenization.formats.format import Draft, FileState, Format, Lost, Place, Record
from kvtune.tokenization.formats.literals import STRING, string_literal
from kvtune.tokenization.formats.outcome import OTHER_OPERATION
from kvtune.tokenization.formats.vllm_bodies import BODY_LINE, LoggedBodies
from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.request import Identity, Request

_REQUEST = re.compile(r"(?:Received request (?P<new>\S+)|Request (?P<details>\S+) details): ?", re.DOTALL)
_PROMPT = re.compile(rf"prompt: (?P<prompt>None|{STRING})", re.DOTALL)
_IDS = re.compile(r"prompt_token_ids: (?P<ids>None|\[[\d, ]*\])")
_LORA = re.compile(rf"lora_name=(?P<name>{STRING})")
_LORA_PATH = re.compile(rf"lora_path=(?P<path>{STRING})")
_LIMIT = re.compile(r"max_log_len['\"]?\s*[=:]\s*(\d+)")
_YEAR = "2000-"  # a leap year, so that every date of every year exists
_YEAR_SECONDS = 366 * 86400.0
_MOST_DIGITS = 10  # of a token id
_HINT = "set VLLM_REQUEST_BODY_LOG_LEVEL=INFO (docs/getting-a-trace.md#i-have-only-the-log-of-vllm)"
_LEAST_SAME = 3  # this many different prompts of exactly the greatest length are no chance
_LEAST_SHARE = 0.3


def _read(record: Record, place: Place) -> Iterable[Draft]:
    message: str = record[LOG_MESSAGE]
    memory: _Memory = place.file.memory.setdefault("vllm-log", _Memory())
    body = BODY_LINE.match(message)
    if body:
        return memory.bodies.read(message[body.end() :], body["id"], memory.time(record[LOG_TIME]), place)
    found = _REQUEST.match(message)
    if found is None:
        limit = _LIMIT.search(message)
        if limit:
            memory.limit = int(limit[1])
        return []
    name = found["new"] or found["details"]
    shown = memory.bodies.of(name)
    if shown is not None:
        return _told_already(message[found.end() :], shown, memory, place)
    if message.startswith("params: PoolingParams", found.end()):
        place.file.note(OTHER_OPERATION)
        return []
    prompt, ids, rest = _prompt(message[found.end() :])
    lora, path = _LORA.search(rest), _LORA_PATH.search(rest)
    if lora:
        memory.adapters[name] = (string_literal(lora["name"]), string_literal(path["path"]) if path else None)
    if found["new"] and message.startswith("params: ", found.end()):
        if name in memory.detailed:
            memory.adapt(name, place)
        else:
            memory.waiting[name] = place.where  # the prompt is on the details line, if anywhere
        return []
    memory.waiting.pop(name, None)
    if found["details"]:
        memory.detailed[name] = None
    if prompt is None and ids is None:
        raise RecordError("no_request", "prompt", found="None", wanted="a prompt or prompt_token_ids")
    if memory.limit is not None and memory.limit in (len(prompt or ""), len(ids or ())):
        raise _truncated(memory.limit)
    adapter, adapter_path = memory.adapters.pop(name, (None, None))
    origin = Origin(
        id=name,
        source=place.where,
        time=memory.time(record[LOG_TIME]),
        identity=place.file.shared(Identity(lora=adapter, lora_path=adapter_path)),
    )
    if ids:
        read = draft(origin, token_ids=ids, endpoint="completions")
    elif not prompt:
        raise RecordError("empty_prompt", "prompt", found="an empty string", wanted="text")
    else:
        # What the log shows of a chat is rendered already, its special tokens in the text.
        special = False if name.startswith("chatcmpl") else None
        read = draft(origin, text=prompt, endpoint="completions", add_special_tokens=special)
    if found["details"]:
        memory.detailed[name] = read.request
    return [read]


def _told_already(rest: str, requests: list[Request], memory: _Memory, place: Place) -> Iterable[Draft]:
    """A further line on a request whose body was logged: it may name the adapter, or say that it is no prompt."""
    if rest.startswith("params: PoolingParams"):
        place.file.note(OTHER_OPERATION)
        memory.bodies.pool(requests)
    elif rest.startswith("params: "):
        lora, path = _LORA.search(rest), _LORA_PATH.search(rest)
        if lora:
            memory.bodies.adapt(
                requests, string_literal(lora["name"]), string_literal(path["path"]) if path else None, place
            )
    return []


class _Memory:
    """What one log told so far: its limit, adapters by request, requests whose prompt did not come yet."""

    def __init__(self) -> None:
        self.limit: int | None = None
        self.adapters: dict[str, tuple[str | None, str | None]] = {}
        self.waiting: dict[str, str] = {}
        self.detailed: dict[str, Request | None] = {}  # whose details line came: it stands before the other
        self.bodies = LoggedBodies()
        self._last = 0.0
        self._years = 0.0

    def adapt(self, name: str, place: Place) -> None:
        """Gives the request of a details line the adapter that the line after it names."""
        request = self.detailed[name]
        lora, path = self.adapters.pop(name, (None, None))
        if request is not None and lora is not None:
            request.identity = place.file.shared(Identity(lora=lora, lora_path=path))

    def time(self, text: str | None) -> Moment | None:
        """The time of a line, None where it has none; one that falls by half a year is of the next year."""
        if text is None:
            return None
        if re.match(r"\d{4}-", text):
            return moment(text, "time")
        found = moment(_YEAR + text, "time")
        if found is None:
            return None
        if found.value < self._last - _YEAR_SECONDS / 2:
            self._years += _YEAR_SECONDS
        self._last = found.value
        return found._replace(value=found.value + self._years)


def _finish(file: FileState, requests: list[Request]) -> Iterable[Lost]:
    memory = file.memory.get("vllm-log")
    if memory is None:
        return
    for request in memory.bodies.pooled():
        yield Lost(request.source, None, request)
    wanted = (
        "a JSON body or details line (VLLM_REQUEST_BODY_LOG_LEVEL=INFO; before 0.31 VLLM_LOGGING_LEVEL=DEBUG)"
    )
    for where in memory.waiting.values():
        yield Lost(
            where,
            RecordError(
                "no_request", "prompt", found="a request without its prompt", wanted=wanted, hint=_HINT
            ),
        )
    if memory.limit is not None:
        return
    lengths = Counter(len(request.text) for request in requests if request.text is not None)
    if not lengths:
        return
    longest = max(lengths)
    same = [request for request in requests if request.text is not None and len(request.text) == longest]
    if len({request.text for request in same}) >= _LEAST_SAME and len(same) >= _LEAST_SHARE * len(requests):
        for request in same:
            yield Lost(request.source, _truncated(longest), request)


def _truncated(limit: int) -> RecordError:
    return RecordError(
        "truncated_prompt",
        "prompt",
        found=f"a prompt cut at {limit}",
        wanted="whole prompts (no --max-log-len)",
    )


def _prompt(text: str) -> tuple[str | None, list[int] | None, str]:
    """The prompt, its ids, and the rest of the line; a prompt is a stranger's text, so nothing is looked for in it."""
    shown = _PROMPT.match(text)
    prompt = string_literal(shown["prompt"]) if shown and shown["prompt"] != "None" else None
    rest = text[shown.end() :] if shown else text
    listed = _IDS.search(rest)
    if listed is None or listed["ids"] == "None":
        return prompt, None, rest
    digits = listed["ids"][1:-1].replace(" ", "").split(",")
    ids = [int(one) if len(one) <= _MOST_DIGITS else -1 for one in digits if one]
    return prompt, checked_ids(ids, "prompt_token_ids") if ids else None, rest


FORMAT = Format(
    name="vllm-log",
    about="vLLM's own log with --enable-log-requests (VLLM_REQUEST_BODY_LOG_LEVEL=INFO or VLLM_LOGGING_LEVEL=DEBUG)",
    recognised_by='log lines "Request … JSON body: …", "Request … details: …" or "Received request …: prompt: …"',
    example="DEBUG 09-01 12:00:00 [logger.py:52] Request cmpl-1-0 details: prompt: 'Once upon a time', "
    "prompt_token_ids: None, prompt_embeds shape: None.",
    recognises=lambda record: isinstance(record, LogRecord),
    read=_read,
    finish=_finish,
)
