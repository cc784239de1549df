"""Mooncake's published traces (FAST'25): arrival in ms, lengths, one id per 512-token block."""

from __future__ import annotations

from collections.abc import Iterable

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.block_hashes import read_blocks
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record

BLOCK_SIZE = 512


def _read(record: Record, place: Place) -> Iterable[Draft]:
    block_size = fields.whole_number(record, ("block_size",), least=1) or BLOCK_SIZE
    length = fields.whole_number(record, ("input_length",), least=1)
    origin = origin_of(record, place, time=fields.time_of(record, ("timestamp",), unit="ms"))
    return [read_blocks(record["hash_ids"], length, block_size, origin)]


FORMAT = Format(
    name="mooncake",
    about="Mooncake traces (FAST'25): block hashes, no text",
    recognised_by="hash_ids and input_length, without chat_id",
    example='{"timestamp": 0, "input_length": 700, "output_length": 52, "hash_ids": [0, 1]}',
    recognises=lambda record: "hash_ids" in record and "input_length" in record,
    read=_read,
)
