"""Tensors out of `*.safetensors` files: the header is checked before a byte of data is believed.

Format: eight bytes of little-endian length, a JSON header {name: {dtype, shape, data_offsets}}, then the data.
Source: the format's own description (huggingface/safetensors). Knows files; not what a tensor is for.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from kvtune.tokenization.errors import UnusableInputError

MAX_HEADER_BYTES = 100_000_000
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class SafetensorsFolder:
    """All tensors of a folder's files, mapped and not read until they are asked for."""

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            UnusableInputError: no file, or a header that is not one.
        """
        self.folder = folder
        self._entries: dict[str, tuple[memoryview, Mapping[str, Any], Path]] = {}
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise UnusableInputError("holds no safetensors file", where=str(folder))
        for path in paths:
            self._open(path)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def get(self, name: str) -> torch.Tensor:
        """The tensor, on the CPU, in its own type.

        Raises:
            UnusableInputError: it is missing, of a type that is not built in, or its bytes do not fit its shape.
        """
        if name not in self._entries:
            raise UnusableInputError(
                "is missing from the weights",
                where=str(self.folder),
                field=name,
                way_out="use --layers N for synthetic ones",
            )
        data, entry, path = self._entries[name]
        dtype = DTYPES.get(str(entry.get("dtype")))
        shape, offsets = _counts(entry.get("shape")), _counts(entry.get("data_offsets"))
        if dtype is None:
            raise UnusableInputError(
                "is of a type that the bundled engine lacks",
                where=str(path),
                field=name,
                found=str(entry.get("dtype"))[:20],
                wanted=", ".join(DTYPES),
            )
        if shape is None or offsets is None or len(offsets) != 2:
            raise UnusableInputError("has a malformed header entry", where=str(path), field=name)
        begin, end = offsets
        if not begin <= end <= len(data) or end - begin != math.prod(shape) * dtype.itemsize:
            raise UnusableInputError("has bytes that do not fit its shape", where=str(path), field=name)
        if begin == end:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(data[begin:end], dtype=dtype).view(shape)

    def _open(self, path: Path) -> None:
        with path.open("rb") as file:
            size = path.stat().st_size
            head = file.read(8)
            length = int.from_bytes(head, "little")
            if len(head) < 8 or length > min(MAX_HEADER_BYTES, size - 8):
                raise UnusableInputError("is no safetensors file: its header does not fit", where=str(path))
            try:
                header = json.loads(file.read(length))
            except (ValueError, RecursionError) as error:
                raise UnusableInputError(
                    "is no safetensors file: its header is not JSON", where=str(path)
                ) from error
            if not isinstance(header, dict):
                raise UnusableInputError("is no safetensors file: its header is no object", where=str(path))
            # Private copy on write: torch asks for writable memory, and the file stays as it is.
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))[8 + length :]
        for name, entry in header.items():
            if name != "__metadata__" and isinstance(entry, dict):
                self._entries[name] = (mapped, entry, path)


def _counts(value: object) -> list[int] | None:
    """A list of numbers from zero on, or None."""
    fits = isinstance(value, list) and all(isinstance(item, int) and item >= 0 for item in value)
    return value if fits else None  # type: ignore[return-value]
