"""Prompts of a log against the prompts that the server received: what the tables of logs count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from kvtune.tokenization.encoding.model_folder import read_model_folder
from kvtune.tokenization.encoding.prompt_encoder import PromptEncoder
from kvtune.tokenization.reading import ReadResult, read_trace
from kvtune.tokenization.request import Request

DATA = Path(__file__).parents[1] / "data"
LOGS = DATA / "logs"


def read_log(name: str, **options: object) -> ReadResult:
    """A file of `data/logs`, by its path there."""
    return read_trace([str(LOGS / name)], **options)  # type: ignore[arg-type]


def rendered(requests: Iterable[Request]) -> list[str]:
    """The prompts as a Qwen3.5-like template writes them; ids as their numbers."""
    return [
        _encoder().render(request).text
        if request.messages is not None
        else str(request.text or request.token_ids)
        for request in requests
    ]


def equal_prompts(log: ReadResult, truth: ReadResult) -> int:
    """How many requests of `log` have a prompt of `truth`, each of which counts once."""
    return (Counter(rendered(log.requests)) & Counter(rendered(truth.requests))).total()


@cache
def _encoder() -> PromptEncoder:
    folder = read_model_folder(DATA / "models" / "qwen3.5-like")
    return PromptEncoder(
        None, source="template", templates=folder.templates, special_tokens=folder.special_tokens
    )
