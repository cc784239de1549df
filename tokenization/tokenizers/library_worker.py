"""The library `tokenizers` in a process of its own: loading a large file holds up every thread of the one that does."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.tokenizers.library import load_tokenizer
from kvtune.tokenization.workers import Worker


class LostError(Exception):
    """The worker has ended, or could not load the file: what it was asked is to be found out here."""


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
                from kvtune.tokenization.tokenizers.compiled import described

                pipe.send(described(tokenizer))
            else:
                encodings = tokenizer.encode_batch_fast(asked.texts, add_special_tokens=asked.affixes)
                pipe.send([array("I", encoding.ids).tobytes() for encoding in encodings])


class LibraryWorker:
    """Begins to load at once. Its methods raise LostError where it is of no use."""

    def __init__(self, path: Path, added_tokens: Mapping[str, Any]) -> None:
        """Raises OSError where the system starts no more processes."""
        self._worker: Worker | None = Worker((__name__,))
        self._worker.begin_once_up(_LibraryTask(path, added_tokens))
        self._is_loaded = False

    def describe(self) -> Any:
        """What `compiled.described` says of the tokenizer."""
        return self._answer(_Ask())

    def encode(self, texts: Sequence[str], *, affixes: bool) -> list[bytes]:
        """Ids of each text, as uint32."""
        encoded: list[bytes] = self._answer(_Ask(list(texts), affixes))
        return encoded

    def _answer(self, ask: _Ask) -> Any:
        worker = self._worker
        if worker is None:
            raise LostError
        try:
            if not self._is_loaded and worker.answer() is None:
                raise EOFError
            self._is_loaded = True
            worker.pipe.send(ask)
            return worker.answer()
        except (OSError, EOFError) as error:
            self.end()
            raise LostError from error

    def end(self) -> None:
        """Stop it."""
        if self._worker is not None:
            self._worker.end()
        self._worker = None
