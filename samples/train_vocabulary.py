"""Trains the tiny model's vocabulary from the bundled traces: byte-pair encoding, at most 8,000 tokens.

    python samples/train_vocabulary.py

Reads `airline.jsonl.gz` and `functions.jsonl.gz` beside it and writes `tiny-hybrid/tokenizer.json`. Every distinct text
counts once, so that what all requests share does not fill the vocabulary. The same traces give the same bytes.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = Path(__file__).resolve().parent
MOST_TOKENS = 8000
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How texts split into words: the pattern of the Qwen3.5 family."""

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|turn|>",
    "<|end|>",
    "<|call|>",
    "<|result|>",
    "<|image|>",
)


def main() -> None:
    """Train and write."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MOST_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        show_progress=False,
    )
    texts = dict.fromkeys(
        text for name in ("airline", "functions") for text in texts_of(HERE / f"{name}.jsonl.gz")
    )
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    tokenizer.save(str(HERE / "tiny-hybrid" / "tokenizer.json"))
    print(f"{tokenizer.get_vocab_size()} tokens from {len(texts)} texts", file=sys.stderr)


def texts_of(path: Path) -> Iterator[str]:
    """Every string of the requests and answers, and the tools' JSON."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield from (json.dumps(tool, ensure_ascii=False) for tool in row["body"].get("tools", ()))
            for message in [*row["body"]["messages"], row["response"]]:
                yield from strings_in(message)


def strings_in(value: Any) -> Iterator[str]:
    """All strings of a JSON value but its keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)


if __name__ == "__main__":
    main()
