"""Bailian (Qwen) usage traces: ids of 16-token blocks, chats chained by parent."""

from __future__ import annotations

from collections.abc import Iterable

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.block_hashes import read_blocks
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, FileState, Format, Lost, Place, Record
from kvtune.tokenization.request import Request

BLOCK_SIZE = 16


def _read(record: Record, place: Place) -> Iterable[Draft]:
    chat = fields.text_of(record["chat_id"])
    parent = fields.text_of(record.get("parent_chat_id"))
    parent = None if parent in (None, "-1", chat) else parent
    time = fields.time_of(record, ("timestamp",), "s")
    origin = origin_of(record, place, id=chat or place.where, parent=parent, session=None, time=time)
    length = fields.whole_number(record, ("input_length",), least=1)
    draft = read_blocks(record.get("hash_ids"), length, BLOCK_SIZE, origin)
    place.file.memory.setdefault("bailian", {})[origin.id] = parent
    return [draft]


def _finish(file: FileState, requests: list[Request]) -> Iterable[Lost]:
    """A chat's session is the chat that its chain of parents starts with, whatever the order of the lines."""
    parents: dict[str, str | None] = file.memory.get("bailian", {})
    roots: dict[str, str] = {}
    for request in requests:
        if request.id not in parents:
            continue
        chain: dict[str, None] = {}
        at: str | None = request.id
        while at is not None and at not in roots and at not in chain:
            chain[at] = None
            parent = parents.get(at)
            if parent is None:
                break
            at = parent
        root = roots.get(at or "", at or request.id)
        roots.update(dict.fromkeys(chain, root))
        request.session = root
    return ()


FORMAT = Format(
    name="bailian",
    about="Alibaba's Bailian (Qwen) usage traces: 16-token block hashes, chains by parent",
    recognised_by="chat_id and hash_ids",
    example='{"chat_id": 7, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20, "output_length": 5, "type": '
    '"text", "turn": 1, "hash_ids": [3, 4]}',
    recognises=lambda record: "chat_id" in record and "hash_ids" in record,
    read=_read,
    finish=_finish,
)
