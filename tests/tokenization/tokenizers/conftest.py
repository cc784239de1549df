"""Small tokenizers of every kind, made on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

TEXT = [
    "The quick brown fox can't jump over 1234 lazy dogs, it's said.\n\nIs it?\n  Indented line\n\ttab, and café — 北京",
    "def f(x):\n    return x // 2  # halves\n\n\nprint(f(10))\r\n/path/to/file\n- item\n* item\n",
]

SPECIALS = ("<|start|>", "<|end|>", "<|image|>")


def build(
    pattern: str = r"\p{N}|[^\r\n\p{L}\p{N}]?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    *,
    normalizer: Any = None,
    pre_tokenizer: Any = None,
    post_processor: Any = None,
    specials: tuple[AddedToken, ...] | None = None,
) -> Tokenizer:
    """A byte-level BPE of 300 tokens and the special ones; any part can be replaced."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer or normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_tokens(
        list(specials)
        if specials is not None
        else [AddedToken(token, special=True, normalized=False) for token in SPECIALS]
    )
    if post_processor is not None:
        tokenizer.post_processor = post_processor
    return tokenizer


def with_bos(token: str = "<|start|>", number: int = 300) -> Any:
    """A post-processor that puts a BOS in front."""
    return processors.TemplateProcessing(single=f"{token} $A", special_tokens=[(token, number)])


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[Tokenizer], Path]:
    """Writes a tokenizer to a `tokenizer.json`."""

    def save(tokenizer: Tokenizer) -> Path:
        path = tmp_path / "tokenizer.json"
        tokenizer.save(str(path))
        return path

    return save
