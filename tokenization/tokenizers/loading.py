"""The library `tokenizers`: a `tokenizer.json` as the engine loads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvtune.tokenization.errors import UnusableInputError


def load_tokenizer(path: Path, added_tokens: Mapping[str, Any]) -> Any:
    """A `tokenizers.Tokenizer` that neither cuts nor pads, with the tokens that the file lacks.

    Raises:
        UnusableInputError: the file is missing or no tokenizer.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every kind of bad file
        raise UnusableInputError(
            "cannot be loaded as a tokenizer",
            where=str(path),
            wanted="a tokenizer.json",
            found=_reason(error),
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _add_missing(tokenizer, added_tokens)
    return tokenizer


def _add_missing(tokenizer: Any, added_tokens: Mapping[str, Any]) -> None:
    from tokenizers import AddedToken

    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    numbered = [(int(number), token) for number, token in added_tokens.items() if number.isdecimal()]
    for _, token in sorted(numbered, key=lambda pair: pair[0]):
        content = token.get("content") if isinstance(token, dict) else None
        if isinstance(content, str) and content and content not in known:
            tokenizer.add_tokens([AddedToken(content, **{name: bool(token.get(name)) for name in flags})])


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
