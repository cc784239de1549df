"""The prompts of a trace on their way from requests to ids, and the logged answers beside them.

    add(request) -> pieces of text ->  [current batch]  -> submit ->  [in flight]  -> assemble -> token buffer

Knows one request at a time, the encoder and the memory of pieces. Names and namespaces are kept elsewhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from kvtune.tokenization.chat_template.messages import Media
from kvtune.tokenization.encoding.answers import answer_text
from kvtune.tokenization.encoding.buffer import TokenBuffer
from kvtune.tokenization.encoding.check import Checked, CheckSample
from kvtune.tokenization.encoding.media_ids import MediaIds, with_lengths
from kvtune.tokenization.encoding.parts import ALL_USER, PromptParts, Runs, cut_spans, runs_of, spans_from
from kvtune.tokenization.encoding.prompt_encoder import CannotEncodeError, Prompt, PromptEncoder
from kvtune.tokenization.encoding.render_ahead import RenderAhead
from kvtune.tokenization.request import Request
from kvtune.tokenization.tokenizers.pieces import Piece, PieceEncoder, joined
from kvtune.tokenization.trace import UInt32

_SHORT_CHARS = 64
_NOTHING: UInt32 = np.zeros(0, dtype=np.uint32)


@dataclass
class _Row:
    """One prompt: ids as they are, or pieces. `affixed`: a BOS and the like go around it.

    `anchors` says for each item of media in which piece its message stands. `whole` and `alone` are the answer
    behind the prompt and by itself, in pieces.
    """

    ids: UInt32 | None = None
    pieces: list[Piece] = field(default_factory=list)
    has_parts: bool = False
    affixed: bool = False
    checked: Checked | None = None
    media: Sequence[Media] = ()
    logged_tokens: int | None = None
    anchors: Sequence[int] = ()
    output_ids: UInt32 = field(default_factory=lambda: _NOTHING)
    whole: list[Piece] = field(default_factory=list)
    alone: list[Piece] = field(default_factory=list)


class RowEncoder:
    """Takes requests one by one; its buffers hold all rows after `finish`.

    Attributes:
        tokens, outputs: prompts and answers; an answer is empty where it was not asked for or cannot be told.
        parts: where in its prompt each token stands.
        retokenised: answers that were text. double_bos: prompts that begin with two BOS tokens.
        media_items: images and other media of each prompt. logged_lengths: prompts whose media got what the logged
            length leaves for them. unsized_media: prompts with media of unknown length, each of which is one token.
    """

    def __init__(
        self,
        encoder: PromptEncoder | None,
        *,
        outputs: bool,
        check: int | None,
        seed: int,
        ahead: RenderAhead | None = None,
        trusts_lengths: bool = False,
    ) -> None:
        self._encoder = encoder
        self._ahead = ahead
        self._with_outputs = outputs
        self._sample = CheckSample(check, seed)
        self._pieces: PieceEncoder | None = None
        self._media: MediaIds | None = None
        self._current: list[_Row] = []
        self._in_flight: list[_Row] = []
        self.tokens = TokenBuffer()
        self.outputs = TokenBuffer()
        self.parts = PromptParts()
        self.retokenised = 0
        self.double_bos = 0
        self.media_items: list[int] = []
        self.logged_lengths: list[bool] = []
        self.unsized_media = 0
        self._trusts_lengths = trusts_lengths

    def add(self, request: Request) -> bool:
        """Take a request with ids, text or messages; False where its prompt is empty.

        Raises:
            CannotEncodeError: nothing can be done for any request like this (no vocabulary, no template).
            UnusableInputError: this one is refused.
        """
        if request.token_ids is not None:
            if not request.token_ids:
                return False
            row = _Row(ids=np.array(request.token_ids, dtype=np.uint32))
            if self._encoder is not None:
                self._add_answer(row, request, None)
        else:
            text_row = self._text_row(request)
            if text_row is None:
                return False
            row = text_row
        if self._with_outputs and isinstance(request.output, list):
            row.output_ids = np.array(request.output, dtype=np.uint32)
        self._current.append(row)
        if self._pieces is not None and self._pieces.is_due:
            self._submit()
        return True

    def finish(self) -> int:
        """Assemble what is left and compare the sample; how many prompts were compared."""
        self._submit()
        self._submit()
        if self._pieces is None or self._encoder is None:
            return 0
        self._pieces.close()
        compared = self._sample.compare(self._encoder.vocabulary)
        self._encoder.vocabulary.end_checks()
        return compared

    # From a request to pieces.

    def _text_row(self, request: Request) -> _Row | None:
        encoder = self._encoder
        if encoder is None:
            raise CannotEncodeError(
                "the trace holds text, and nothing says how to turn it into token ids",
                where=request.source or None,
                wanted="--model DIR or --tokenizer PATH",
            )
        piece_encoder = self._need_pieces(encoder)
        prompt = None
        if request.messages is not None:
            prompt = encoder.render(request, self._ahead.take(request) if self._ahead is not None else None)
        text = prompt.text if prompt is not None else request.text or ""
        affixed = request.add_special_tokens
        if affixed is None:
            affixed = prompt is None
        encode = encoder.vocabulary.encode_with_affixes if affixed else encoder.vocabulary.encode
        row = _Row(affixed=affixed)
        if len(text) < _SHORT_CHARS and not text.strip() and not len(encode([text])[0]):
            return None
        pieces = piece_encoder.cut(text)
        if affixed and encoder.vocabulary.affixes is None:
            row.ids = encode([text])[0]
        else:
            row.pieces = pieces
            row.checked = self._sample.draw(request.id, text, affixed=affixed)
        if prompt is not None:
            self._note_parts(row, prompt)
            row.media = prompt.conversation.media
            row.logged_tokens = request.prompt_tokens
            row.anchors = [self._anchor(row, prompt, item) for item in row.media]
        self._add_answer(row, request, prompt)
        return row

    def _add_answer(self, row: _Row, request: Request, prompt: Prompt | None) -> None:
        if not self._with_outputs or self._encoder is None:
            return
        text = answer_text(self._encoder, request, prompt)
        if text is not None:
            pieces = self._need_pieces(self._encoder)
            row.alone = pieces.cut(text)
            row.whole = pieces.cut(prompt.text + text) if prompt is not None else []

    def _need_pieces(self, encoder: PromptEncoder) -> PieceEncoder:
        """The memory of pieces; the vocabulary is loaded for the first text."""
        if self._pieces is None:
            self._pieces = PieceEncoder(encoder.vocabulary)
        return self._pieces

    def _starts(self, pieces: Sequence[Piece]) -> list[int]:
        """Where each piece of a prompt begins, in characters."""
        gap = len(self._pieces.separator or "") if self._pieces is not None else 0
        starts = [0]
        for piece in pieces:
            starts.append(starts[-1] + len(piece.text) + gap)
        return starts

    def _note_parts(self, row: _Row, prompt: Prompt) -> None:
        """Leave in every new piece which of its characters are whose."""
        row.has_parts = True
        if self._encoder is None or None not in [piece.notes for piece in row.pieces]:
            return
        starts = self._starts(row.pieces)
        floor = next(start for start, piece in zip(starts, row.pieces, strict=False) if piece.notes is None)
        spans = spans_from(prompt.text, prompt.conversation.messages, prompt.tool_texts, floor)
        for start, piece in zip(starts, row.pieces, strict=False):
            if piece.notes is None:
                piece.notes = cut_spans(spans, start, start + len(piece.text))

    def _anchor(self, row: _Row, prompt: Prompt, item: Media) -> int:
        """The piece in which an item's message begins; the last where the message has no text."""
        messages = prompt.conversation.messages
        spans = spans_from(prompt.text, messages[item.message : item.message + 1], (), 0)
        at = spans[0].start if spans else len(prompt.text)
        return sum(start <= at for start in self._starts(row.pieces)[1:-1])

    # From pieces to ids.

    def _submit(self) -> None:
        if self._pieces is not None:
            self._pieces.submit(self._assemble_in_flight)
        else:
            self._assemble_in_flight()

    def _assemble_in_flight(self) -> None:
        """Rows cut before the latest `submit` have all their ids now."""
        self._find_runs([piece for row in self._in_flight for piece in row.pieces])
        for row in self._in_flight:
            self._assemble(row)
        self._in_flight, self._current = self._current, []
        if self._encoder is not None and self._pieces is not None:
            self._sample.compare_some(self._encoder.vocabulary)

    def _assemble(self, row: _Row) -> None:
        separator = self._pieces.separator_ids if self._pieces is not None else _NOTHING
        inner = row.ids if row.ids is not None else joined(row.pieces, separator)
        ids, before = inner, 0
        if row.affixed and row.ids is None and self._encoder is not None:
            affixes = self._encoder.vocabulary.affixes
            if affixes is not None:
                ids, before = np.concatenate((affixes[0], inner, affixes[1])), len(affixes[0])
        if row.checked is not None:
            row.checked.ids = ids
        self._count_double_bos(ids)
        starts, runs = self._runs(row, before)
        self.media_items.append(len(row.media))
        if row.media:
            ids, starts = self._with_media(row, ids, starts)
        else:
            self.logged_lengths.append(False)
        self.tokens.append(ids)
        self.parts.add_row(starts, runs)
        self._append_output(row, inner, separator)

    def _append_output(self, row: _Row, inner: UInt32, separator: UInt32) -> None:
        output = row.output_ids
        if row.alone:
            self.retokenised += 1
            output = joined(row.alone, separator)
            if row.whole:
                whole = joined(row.whole, separator)
                if np.array_equal(whole[: len(inner)], inner):
                    output = whole[len(inner) :]
        self.outputs.append(output)

    def _count_double_bos(self, ids: UInt32) -> None:
        bos = self._encoder.bos_id if self._encoder is not None and self._pieces is not None else None
        if bos is not None and len(ids) > 1 and ids[0] == bos and ids[1] == bos:
            self.double_bos += 1

    def _runs(self, row: _Row, before: int) -> tuple[array[int], list[Runs]]:
        """Where each piece begins, in tokens, and its runs of tokens of one part."""
        if not row.has_parts or not row.pieces or self._pieces is None:
            return array("q", [0]), [ALL_USER]
        gap = len(self._pieces.separator_ids)
        sizes = [len(piece.resolve()) + gap for piece in row.pieces[:-1]]
        starts = array("q", accumulate(sizes, initial=before))
        return starts, [piece.notes for piece in row.pieces]

    def _find_runs(self, pieces: Sequence[Piece]) -> None:
        """Turn what was noted of characters (lists of spans) to runs of tokens."""
        new = list({id(piece): piece for piece in pieces if type(piece.notes) is list}.values())
        if new and self._encoder is not None:
            texts = [piece.text for piece in new]
            ends = self._encoder.vocabulary.token_ends(texts, [piece.resolve() for piece in new])
            for piece, runs in zip(new, runs_of([piece.notes for piece in new], texts, ends), strict=True):
                piece.notes = runs

    def _with_media(self, row: _Row, ids: UInt32, starts: array[int]) -> tuple[UInt32, array[int]]:
        """The prompt with its items as ids, and where its pieces begin then."""
        if self._encoder is None:
            return ids, starts
        if self._media is None:
            self._media = MediaIds(self._encoder.vocabulary.size)
        anchors = [starts[min(number, len(starts) - 1)] for number in row.anchors]
        placed, inserted = self._media.place(ids, row.media, self._encoder.media_token_ids, anchors)
        starts = array("q", [at + sum(position <= at for position in inserted) for at in starts])
        placed, inserted = with_lengths(placed, row.media, self._lengths(row, len(placed)), self._media.of)
        return placed, array("q", [at + sum(position <= at for position in inserted) for at in starts])

    def _lengths(self, row: _Row, placed: int) -> list[int]:
        """Tokens of each item: by the model's processor, else what the logged length leaves for it, else 1.

        `placed` is the prompt's length with one token an item.
        """
        processor = self._encoder.media_lengths if self._encoder is not None else None
        known = [processor.of(item) if processor is not None else None for item in row.media]
        if self._trusts_lengths and row.logged_tokens is not None:
            known = [None] * len(known)
        unknown = known.count(None)
        rest = (row.logged_tokens or 0) - placed - sum(tokens - 1 for tokens in known if tokens is not None)
        is_logged = bool(unknown) and row.logged_tokens is not None and rest >= 0
        self.logged_lengths.append(is_logged)
        self.unsized_media += bool(unknown) and not is_logged
        if not is_logged:
            return [tokens or 1 for tokens in known]
        share, more = divmod(rest, unknown)
        extra = iter([share + 1] * more + [share] * (unknown - more))
        return [1 + next(extra) if tokens is None else tokens for tokens in known]
