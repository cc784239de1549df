"""How records are packed in a file: lines, JSON documents, CSV, Parquet, archives of these; told by content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvtune.tokenization.containers.archives import ZIP_MAGIC, is_tar, read_tar, read_zip
from kvtune.tokenization.containers.columnar import MAGICS, read_columnar
from kvtune.tokenization.containers.csv_table import is_csv, read_csv
from kvtune.tokenization.containers.item import Item
from kvtune.tokenization.containers.json_document import is_document, read_document
from kvtune.tokenization.containers.json_lines import read_lines
from kvtune.tokenization.containers.other_files import refuse_other_files
from kvtune.tokenization.sources import BrokenStreamError, Source
from kvtune.tokenization.strict_json import StrictDecoder

__all__ = ["Item", "records_of"]

_HEAD_BYTES = 64 << 10


def records_of(source: Source, decoder: StrictDecoder, max_line_bytes: int) -> Iterator[Item]:
    """The records of a file, in file order."""

    def read(name: str, chunks: Iterator[bytes]) -> Iterator[Item]:
        return _records(name, chunks, decoder, max_line_bytes)

    head, chunks = _peek(source.chunks())
    if is_tar(head):
        return read_tar(source.name, chunks, read)
    if head.startswith(ZIP_MAGIC):
        return read_zip(source.name, chunks, read)
    return read(source.name, chunks)


def _records(
    name: str, stream: Iterator[bytes], decoder: StrictDecoder, max_line_bytes: int
) -> Iterator[Item]:
    head, chunks = _peek(stream)
    refuse_other_files(name, head)
    if head.startswith(MAGICS):
        return read_columnar(name, chunks)
    if is_document(head):
        return read_document(name, chunks, decoder, max_line_bytes)
    if is_csv(head):
        return read_csv(name, chunks, decoder, max_line_bytes)
    return read_lines(name, chunks, decoder, max_line_bytes)


def _peek(chunks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The stream's beginning, two lines of it where they are short, and the whole stream again."""
    seen: list[bytes] = []
    head = b""
    broken: BrokenStreamError | None = None
    try:
        for chunk in chunks:
            seen.append(chunk)
            head += chunk[:_HEAD_BYTES]
            if len(head) >= _HEAD_BYTES or head.count(b"\n") > 1:
                break
    except BrokenStreamError as error:
        broken = error
    return head, _replay(seen, chunks, broken)


def _replay(
    seen: Iterable[bytes], rest: Iterator[bytes], broken: BrokenStreamError | None
) -> Iterator[bytes]:
    yield from seen
    if broken:
        raise broken
    yield from rest
