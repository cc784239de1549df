"""Texts to ids through a memory of pieces: each distinct piece is encoded once, in batches, off the main thread.

    text      <|im_start|>system\\n...<|im_end|>\\n<|im_start|>user\\n...<|im_end|>\\n<|im_start|>assistant\\n
    parts    |------------- a -------|----------- b ------------|------------ c ------------|
    lines    |-- a1 --|-- a2 --|     |----------- b ------------|                             (unknown parts only)

A text is cut at the one special token that cuts it most, then, where the vocabulary allows, at line borders.
`CutRules` says where that is exact; elsewhere a text is one part. What is known about one part (its ids, and what
`PartNotes` the caller keeps) is remembered up to a number of bytes, then forgotten altogether.
Knows texts and ids; no requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.tokenizers.line_cuts import lines_of
from kvtune.tokenization.tokenizers.vocabulary import Vocabulary
from kvtune.tokenization.trace import UInt32

BATCH_CHARS = 1 << 18
"""Unknown characters that make a batch: enough for all workers, little enough to overlap with rendering."""

IDLE_BATCH_CHARS = 1 << 16
"""What makes a batch while nothing is being encoded."""

MEMORY_BYTES = 1 << 27
"""Text and ids that are remembered before everything is forgotten."""

_SEPARATOR_TRIES = 16  # texts looked at before giving up on special tokens
_NOTHING = np.zeros(0, dtype=np.uint32)


class SurrogateError(UnusableInputError):
    """A text with half a surrogate pair: no vocabulary can encode it, and neither can the engine."""


class Piece:
    """A stretch of text that is encoded on its own. `ids` is None until its batch is done.

    `notes` is the caller's: what it found out about this text and wants to find again.
    """

    __slots__ = ("ids", "lines", "notes", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.ids: UInt32 | None = None
        self.lines: list[Piece] | None = None
        self.notes: Any = None

    def resolve(self) -> UInt32:
        """The ids, once every batch up to this piece's is done."""
        if self.ids is None:
            if self.lines is None:
                raise RuntimeError("a piece was asked for its ids before its batch was done")
            self.ids = np.concatenate([line.resolve() for line in self.lines])
            self.lines = None
        return self.ids


class PieceEncoder:
    """Cuts texts into pieces and gets the ids of those that are new.

    Use: `cut` any number of texts, `submit` when `pending_chars` is large, `wait` before asking pieces for ids.
    One batch is in flight at most; pieces cut after `submit` belong to the next.

    Attributes:
        separator, separator_ids: the special token between parts and its id, uint32[1]; None and empty before
            the first text that holds one.
        pending_chars: characters waiting for `submit`.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self._flight: tuple[Future[list[UInt32]], list[Piece]] | None = None
        self._parts: dict[str, Piece] = {}
        self._lines: dict[str, Piece] = {}
        self._pending: list[Piece] = []
        self._remembered = 0
        self._tries = _SEPARATOR_TRIES
        self.pending_chars = 0
        self.separator: str | None = None
        self.separator_ids = _NOTHING

    def cut(self, text: str) -> list[Piece]:
        """The parts of `text`; between two of them stands the separator.

        Raises:
            SurrogateError: the text holds half a surrogate pair.
        """
        if self._tries and self.separator is None:
            self._choose_separator(text)
        parts = text.split(self.separator) if self.separator is not None else [text]
        known = self._parts
        return [known.get(part) or self._new_part(part) for part in parts]

    @property
    def is_due(self) -> bool:
        """Whether `submit` is worth calling now."""
        if self.pending_chars < IDLE_BATCH_CHARS:
            return False
        is_idle = self._flight is None or self._flight[0].done()
        return is_idle or self.pending_chars >= BATCH_CHARS

    def submit(self, done: Callable[[], None] = lambda: None) -> None:
        """Start encoding what is pending, after the batch before is done and `done` was called."""
        self.wait()
        done()
        pending = self._pending
        if pending:
            texts = [piece.text for piece in pending]
            self._flight = (self._executor.submit(self._vocabulary.encode, texts), pending)
        self._pending = []
        self.pending_chars = 0

    def wait(self) -> None:
        """Until the batch in flight is done; its pieces have ids then."""
        if self._flight is None:
            return
        future, pieces = self._flight
        self._flight = None
        for piece, ids in zip(pieces, future.result(), strict=True):
            piece.ids = ids
            self._remembered += ids.nbytes

    def close(self) -> None:
        """Let go of the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _choose_separator(self, text: str) -> None:
        self._tries -= 1
        tokens = self._vocabulary.cuts.tokens
        counts = {token: text.count(token) for token in tokens}
        best = max(sorted(counts), key=lambda token: counts[token], default=None)
        if best is not None and counts[best]:
            self.separator = best
            self.separator_ids = np.array([tokens[best]], dtype=np.uint32)

    def _new_part(self, text: str) -> Piece:
        if not text.isascii():
            _refuse_surrogates(text)
        if self._remembered > MEMORY_BYTES:
            # Rows that are being put together hold their own pieces.
            self._parts = {}
            self._lines = {}
            self._remembered = 0
        part = Piece(text)
        lines = lines_of(text) if self._vocabulary.cuts.lines else [text]
        if not text:
            part.ids = _NOTHING
        elif len(lines) == 1:
            self._enqueue(part)
        else:
            known = self._lines
            part.lines = [known.get(line) or self._new_line(line) for line in lines]
        self._parts[text] = part
        self._remembered += len(text) * (2 if part.lines else 1)  # ids of lines are held twice
        return part

    def _new_line(self, text: str) -> Piece:
        line = Piece(text)
        self._lines[text] = line
        self._remembered += len(text)
        self._enqueue(line)
        return line

    def _enqueue(self, piece: Piece) -> None:
        self._pending.append(piece)
        self.pending_chars += len(piece.text)


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SurrogateError(
            "text with half a surrogate pair, which cannot be tokenized", wanted="Unicode text"
        ) from error


def joined(pieces: Sequence[Piece], separator_ids: UInt32) -> UInt32:
    """Ids of a text from its parts: uint32[n]."""
    arrays: list[UInt32] = []
    for piece in pieces:
        arrays += (piece.resolve(), separator_ids)
    return np.concatenate(arrays[:-1])
