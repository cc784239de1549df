"""Files that are no traces at all, told by their beginning: what each is and what to do."""

from __future__ import annotations

import re
from typing import NamedTuple

from kvtune.tokenization.errors import NoUsableRequestError, UnusableInputError


class _OtherFile(NamedTuple):
    begins: re.Pattern[bytes]
    what: str
    hint: str
    is_log: bool = False


_OTHER = (
    _OtherFile(
        re.compile(rb"version https://git-lfs\.github\.com/spec/"),
        "a Git LFS pointer, not the file itself",
        "git lfs pull",
    ),
    _OtherFile(
        re.compile(rb"/?(?:\.git/)?annex/objects/"),
        "a git-annex pointer, not the file itself",
        "git annex get",
    ),
    _OtherFile(
        re.compile(rb"\s*<(?:!doctype html|html)", re.IGNORECASE),
        "an HTML page, such as a login or error page saved in place of the file",
        "download the file again",
    ),
    _OtherFile(
        re.compile(rb"%PDF-"), "a PDF document", "export the log as JSON lines (docs/getting-a-trace.md)"
    ),
    _OtherFile(
        re.compile(rb"time=\S+ level=\w+ source=\S+\.go:\d+ msg="),
        "Ollama's log, not vLLM's",
        "capture what vLLM receives with kvtune capture (docs/getting-a-trace.md#i-have-nothing)",
        is_log=True,
    ),
)


def refuse_other_files(name: str, head: bytes) -> None:
    """Raises `UnusableInputError` or `NoUsableRequestError` for a file that begins like no trace."""
    for one in _OTHER:
        if one.begins.match(head):
            kind = NoUsableRequestError if one.is_log else UnusableInputError
            raise kind("not a trace file", where=name, found=one.what, wanted="a trace", way_out=one.hint)
