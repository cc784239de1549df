"""The library `tokenizers` in a process of its own: loading a large file holds up every thread of the one that does."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.tokenizers.compiled import Compiled, described
from kvtune.tokenization.tokenizers.loading import load_tokenizer
from kvtune.tokenization.trace import UInt32
from kvtune.tokenization.workers import Worker

WORTH_A_WORKER_BYTES = 1 << 22
"""Of a file: loading that takes longer than starting a process."""


@dataclass(frozen=True)
class _Ask:
    """Texts to encode; None: what the tokenizer is."""

    texts: list[str] | None = None
    affixes: bool = False


@dataclass(frozen=True)
class _LibraryTask:
    """Loads a file, then answers what it is asked, until None comes."""

    path: Path
    added_tokens: Mapping[str, Any]

    def serve(self, pipe: Connection) -> None:
        try:
            tokenizer = load_tokenizer(self.path, self.added_tokens)
        except UnusableInputError:
            pipe.send(None)  # who asks loads it, too, and says why that fails
            return
        pipe.send(self)
        while (asked := pipe.recv()) is not None:
            if asked.texts is None:
                pipe.send(described(tokenizer))
            else:
                encodings = tokenizer.encode_batch_fast(asked.texts, add_special_tokens=asked.affixes)
                pipe.send([array("I", encoding.ids).tobytes() for encoding in encodings])


class Library:
    """The library with one file loaded: in a process of its own where that may be and is worth it, else here."""

    def __init__(self, path: Path, added_tokens: Mapping[str, Any], *, beside: bool) -> None:
        """`beside`: whether it may be in a process of its own."""
        self._path = path
        self._added_tokens = added_tokens
        self._beside = beside
        self._worker: Worker | None = None
        self._is_loaded = False

    @cached_property
    def tokenizer(self) -> Any:
        """The library's own object, here. Raises UnusableInputError where the file is missing or no tokenizer."""
        return load_tokenizer(self._path, self._added_tokens)

    def begin(self) -> None:
        """Start to load, if not here."""
        if not self._beside or self._worker is not None or "tokenizer" in self.__dict__:
            return
        try:
            if self._path.stat().st_size > WORTH_A_WORKER_BYTES:
                self._worker = Worker((__name__,))
                self._worker.begin_once_up(_LibraryTask(self._path, self._added_tokens))
        except OSError:  # no such file, or no more processes
            self.stay_here()

    def describe(self) -> Compiled:
        """What the tokenizer is. Raises as `tokenizer`."""
        answer: Compiled | None = self._answer(_Ask())
        return described(self.tokenizer) if answer is None else answer

    def encode(self, texts: Sequence[str], *, affixes: bool) -> list[UInt32]:
        """Ids of each text. Raises as `tokenizer`."""
        answer: list[bytes] | None = self._answer(_Ask(list(texts), affixes))
        if answer is not None:
            return [np.frombuffer(ids, dtype=np.uint32) for ids in answer]
        encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=affixes)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def end(self) -> None:
        """Let go of the process; it begins again where it is needed again."""
        if self._worker is not None:
            self._worker.end()
        self._worker = None
        self._is_loaded = False

    def stay_here(self) -> None:
        """No process of its own from now on."""
        self.end()
        self._beside = False

    def _answer(self, ask: _Ask) -> Any:
        """What the other process answers; None where there is none."""
        self.begin()
        worker = self._worker
        if worker is None:
            return None
        try:
            if not self._is_loaded and worker.answer() is None:
                raise EOFError
            self._is_loaded = True
            worker.pipe.send(ask)
            return worker.answer()
        except (OSError, EOFError):
            self.stay_here()
            return None
