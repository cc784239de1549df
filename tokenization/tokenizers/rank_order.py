"""Whether a byte-level BPE of a `tokenizer.json` is rank-ordered BPE, which faster libraries know: by proof, not trial.

BPE with merges (library `tokenizers`): of the neighbours whose pair is a merge, join those of the earliest merge, the
leftmost first. Rank-ordered BPE (library `tiktoken`): of the neighbours whose bytes together are a token, join those
of the lowest rank, the leftmost first. Both do the same in every word if

  (1) each token t, its bytes split by ranks alone, comes to two parts (x, y) that are one of its merges, and
  (2) tokens are ranked in the order of these merges, and
  (3) merges of other tokens never find their two parts beside each other.

For: as long as no join crosses the border of a stretch of bytes, what happens inside depends on nothing outside. So
wherever two neighbours together make t, the stretch that they fill went through what t's bytes alone go through, which
has one state of two parts: (x, y). Both libraries then see the same pairs in the same order.

(1) is decided from lower ranks up. Splitting x + y gives (x, y) unless a join crosses the border between them, and
that is a known token's own pair (l, r) with l at the right edge of what x is made of, r at the left edge of y, both
there when its turn comes: after l and r were made and before what they become part of. There is one such chain of
parts for x and one for y; `_is_split` walks both from the last join to the first.

A token that fails (1) is left out. If a merge of it can find its parts all the same, texts that hold its bytes are
named in `avoided`. If whole words are looked up first (`ignore_merges`), such tokens still stand for words, so they
are ranked last, as `uncertain`: a text whose ids hold one of them may have come to it otherwise, too; a text whose ids
hold none did not meet any. Both kinds are for the library that the file was made for.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

_BYTES = 256
_LAST = 1 << 62


class RankOrder(msgspec.Struct, frozen=True):
    """Tokens by rank.

    Attributes:
        ids: id of each token, by rank.
        sizes: bytes of each token, by rank.
        data: the bytes of all tokens, one after another.
        certain: how many ranks are proven; the ranks from there on are uncertain.
        avoided: texts that the model's own library must encode wherever they stand.
    """

    ids: list[int]
    sizes: list[int]
    data: bytes
    certain: int
    avoided: list[str]


class NotProvenError(Exception):
    """The model is not known to be rank-ordered BPE; says why."""


class _Model(msgspec.Struct):
    type: str | None = None
    vocab: dict[str, int] = {}
    merges: list[str | tuple[str, str]] = []
    dropout: float | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    byte_fallback: bool = False
    ignore_merges: bool = False


class _File(msgspec.Struct):
    model: _Model


def rank_order(data: bytes) -> RankOrder:
    """The ranks of the model in a `tokenizer.json`.

    Raises:
        NotProvenError: it is another kind of model, or cannot be shown to be the same.
    """
    try:
        model = msgspec.json.decode(data, type=_File).model
    except msgspec.MsgspecError as error:
        raise NotProvenError("no byte-pair model") from error
    peculiar = (
        model.dropout,
        model.continuing_subword_prefix,
        model.end_of_word_suffix,
        model.byte_fallback,
        model.type not in ("BPE", None),
    )
    letters = byte_letters()
    if any(peculiar) or not all(letter in model.vocab for letter in letters):
        raise NotProvenError("no plain byte-level BPE")
    tokens, left_over = _ranked(model.merges, letters)
    numbers = {letter: number for number, letter in enumerate(letters)}
    as_bytes = str.maketrans({letter: chr(number) for letter, number in numbers.items()})
    avoided = []
    for token in left_over:
        try:
            avoided.append(token.translate(as_bytes).encode("latin-1").decode())
        except ValueError as error:
            raise NotProvenError("a merge that ranks do not give, of a part of a character") from error
    ranked = list(tokens)
    certain = len(ranked)
    if model.ignore_merges:
        left = (token for token in model.vocab if token not in tokens and token not in left_over)
        ranked += [token for token in left if all(letter in numbers for letter in token)]
    pieces = [token.translate(as_bytes).encode("latin-1") for token in ranked]
    return RankOrder(
        [model.vocab[token] for token in ranked], list(map(len, pieces)), b"".join(pieces), certain, avoided
    )


def _ranked(
    merges: Sequence[str | tuple[str, str]], letters: Sequence[str]
) -> tuple[dict[str, int], set[str]]:
    """Rank of every proven token, and tokens that merges make although they are not proven."""
    ranks = {letter: number for number, letter in enumerate(letters)}
    left, right = list(range(_BYTES)), list(range(_BYTES))
    pairs: dict[tuple[int, int], int] = {}
    others: list[tuple[str, str]] = []
    for merge in merges:
        x, y = merge.split(" ") if isinstance(merge, str) else merge
        token = x + y
        if token in ranks:
            continue
        a, b = ranks.get(x), ranks.get(y)
        if a is not None and b is not None and _is_split(a, b, pairs, left, right):
            pairs[a, b] = ranks[token] = len(left)
            left.append(a)
            right.append(b)
        else:
            others.append((x, y))
    met = set()
    for x, y in others:
        a, b = ranks.get(x), ranks.get(y)
        if x + y not in ranks and a is not None and b is not None and _is_split(a, b, pairs, left, right):
            met.add(x + y)
    return ranks, met


def _is_split(
    a: int, b: int, pairs: dict[tuple[int, int], int], left: Sequence[int], right: Sequence[int]
) -> bool:
    """Whether the bytes of a and b together come to (a, b), by ranks."""
    until_a = until_b = _LAST  # the ranks at which a and b become part of more
    while True:
        joined = pairs.get((a, b))
        # Of equal ranks the leftmost goes first: inside x before the border, inside y after it.
        if joined is not None and joined < until_a and joined <= until_b:
            return False
        if b >= a:
            if b < _BYTES:
                return True
            until_b, b = b, left[b]
        else:
            if a < _BYTES:
                return True
            until_a, a = a, right[a]


def byte_letters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's `bytes_to_unicode`)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(_BYTES) if byte not in set(plain))
    code = {byte: byte for byte in plain} | {byte: _BYTES + n for n, byte in enumerate(others)}
    return [chr(code[byte]) for byte in range(_BYTES)]
