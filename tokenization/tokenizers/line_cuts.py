"""Pre-tokenizer patterns for which cutting a text after a newline is exact.

Each pattern below splits a text into words that are encoded on their own. In all of them

  * the only alternatives that match a newline are `\\s*[\\r\\n]+`, a punctuation run with its trailing newlines,
    and plain whitespace, so no word goes on from a newline to a printable ASCII character (with a "/" it may, in
    the o200k family);
  * whitespace up to the last newline of a run is taken by `\\s*[\\r\\n]+`, which comes before `\\s+(?!\\S)` and
    looks at nothing behind it, so the word before the cut is the same when the text ends there;
  * nothing looks behind.

So a newline followed by a printable ASCII character other than "/" always is a border between words. Unicode
normalization moves nothing across it: a newline neither composes nor is reordered, nor does ASCII before it.
A pattern that is not listed is cut at special tokens only. Tests hold each of these against whole texts.
"""

from __future__ import annotations

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"


def _cl100k(digits: str, letters: str, excluded: str) -> str:
    return (
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}"
        rf"| ?[^\s{excluded}]+[\r\n]*{_TAIL}"
    )


CL100K = _cl100k(r"\p{N}{1,3}", r"\p{L}", r"\p{L}\p{N}")
QWEN2 = _cl100k(r"\p{N}", r"\p{L}", r"\p{L}\p{N}")
QWEN35 = _cl100k(r"\p{N}", r"[\p{L}\p{M}]", r"\p{L}\p{M}\p{N}")
# tiktoken's spelling of the same. Its `\s++$` takes the whitespace at the end of a text as one word, and so does
# `\s*[\r\n]` where a newline ends it.
CL100K_TIKTOKEN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_TAIL}"
)

PATTERNS = frozenset({CL100K, CL100K_TIKTOKEN, QWEN2, QWEN35, O200K})

BEFORE = frozenset(chr(code) for code in range(0x21, 0x7F)) - {"/"}
"""Characters before which a text may be cut, if a newline comes before them."""

_MIN_CHARS = 256


def lines_of(text: str) -> list[str]:
    """The text cut at every exact line border; short texts stay whole."""
    if len(text) < _MIN_CHARS:
        return [text]
    pieces: list[str] = []
    first, *rest = text.split("\n")
    current = [first]
    for line in rest:
        if line and line[0] in BEFORE:
            current.append("")
            pieces.append("\n".join(current))
            current = [line]
        else:
            current.append(line)
    pieces.append("\n".join(current))
    return pieces
