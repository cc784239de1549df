"""Strings as Python writes them in a log, evaluated as nothing else."""

from __future__ import annotations

import ast
import warnings
from typing import Any

from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.strict_json import require_whole_characters

STRING = r"'[^'\\]*(?:\\.[^'\\]*)*'|\"[^\"\\]*(?:\\.[^\"\\]*)*\""
"""A pattern of one string, with its quotes."""


def string_literal(text: str) -> str:
    """The string that Python wrote as `text`; raises `RecordError` where it is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes that Python knows not
            value: Any = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = None
    if not isinstance(value, str):
        raise RecordError("cut_line", "prompt", found="a string that is no literal", wanted="the whole line")
    require_whole_characters(value)
    return value
