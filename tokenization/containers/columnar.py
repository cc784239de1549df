"""Parquet and Arrow files: a record a row. Needs the extra `parquet` (pyarrow), loaded here and nowhere else."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

import msgspec

from kvtune.tokenization.containers.item import Item
from kvtune.tokenization.errors import MissingDependencyError, UnusableInputError
from kvtune.tokenization.sources import BrokenStreamError

_BATCH_ROWS = 1024

MAGICS = (b"PAR1", b"ARROW1")


def read_columnar(name: str, chunks: Iterable[bytes]) -> Iterator[Item]:
    """The rows as records; raises `MissingDependencyError` without pyarrow."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError(
            "Parquet and Arrow files need pyarrow", where=name, way_out="pip install 'kvtune[parquet]'"
        ) from error
    # pyarrow seeks; the stream is copied so that stdin, compressed files and the digest work as everywhere.
    with tempfile.TemporaryFile() as file:
        try:
            for chunk in chunks:
                file.write(chunk)
            file.seek(0)
            yield from _rows(name, file)
        except (BrokenStreamError, pyarrow.ArrowException, OSError, ValueError) as error:
            raise UnusableInputError(
                "not a readable Parquet or Arrow file",
                where=name,
                found=type(error).__name__,
                wanted="a whole file",
            ) from error


def _rows(name: str, file: IO[bytes]) -> Iterator[Item]:
    import pyarrow.ipc
    import pyarrow.parquet

    parquet = file.read(4) == MAGICS[0]
    file.seek(0)
    if parquet:
        batches = pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=_BATCH_ROWS)
    else:
        reader = pyarrow.ipc.open_file(file)
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
    row = 0
    for batch in batches:
        for values in batch.to_pylist():
            row += 1
            record = {key: value for key, value in values.items() if value is not None}
            yield Item(f"{name}:{row}", record, _as_json(record))


def _as_json(record: dict[str, Any]) -> Iterator[bytes]:
    """The row as it would stand in JSON lines, written only if somebody asks."""
    yield msgspec.json.encode(record, enc_hook=str)
