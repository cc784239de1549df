"""SGLang's request log (`--log-requests-level 2` or 3): prompts as text or token ids."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvtune.tokenization.clock import moment
from kvtune.tokenization.containers.server_log import LOG_MESSAGE, LOG_TIME, SGLANG_MARK, LogRecord
from kvtune.tokenization.formats.drafts import Origin, checked_ids, draft
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.literals import STRING, string_literal
from kvtune.tokenization.rejects import RecordError

_ID = re.compile(rf"\brid=(?P<id>{STRING})")
_TEXT = re.compile(rf"\btext=(?P<text>None|{STRING})", re.DOTALL)
_IDS = re.compile(r"\binput_ids=(?P<ids>None|\[[\d, ]*\])")
_MOST_DIGITS = 10


def _read(record: Record, place: Place) -> Iterable[Draft]:
    message: str = record[LOG_MESSAGE]
    name, text = _ID.search(message), _TEXT.search(message)
    rest = message[text.end() :] if text else message
    ids = _IDS.search(rest)
    origin = Origin(
        id=string_literal(name["id"]) if name else place.where,
        source=place.where,
        time=moment(record[LOG_TIME], "time"),
        identity=place.file.shared(Origin("", "").identity),
    )
    if ids and ids["ids"] not in ("None", "[]"):
        digits = ids["ids"][1:-1].replace(" ", "").split(",")
        numbers = [int(one) if len(one) <= _MOST_DIGITS else -1 for one in digits if one]
        return [draft(origin, token_ids=checked_ids(numbers, "input_ids"), endpoint="completions")]
    if text and text["text"] != "None":
        shown = string_literal(text["text"])
        if shown:
            return [draft(origin, text=shown, endpoint="completions")]
    raise RecordError(
        "truncated_prompt",
        "input_ids",
        found="no whole prompt",
        wanted="a whole prompt (--log-requests-level 3)",
    )


FORMAT = Format(
    name="sglang-log",
    about="SGLang's log with --log-requests --log-requests-level 3",
    recognised_by='log lines "Receive: obj=GenerateReqInput(…)"',
    example="[2026-01-02 03:04:05] Receive: obj=GenerateReqInput(rid='r0', text=None, input_ids=[1, 2, 3])",
    recognises=lambda record: isinstance(record, LogRecord) and SGLANG_MARK in record[LOG_MESSAGE][:40],
    read=_read,
)
