"""From the command line's options to a `PromptEncoder`: which files, which library, which template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from kvtune.tokenization.chat_rules import chat_rules
from kvtune.tokenization.encoding.model_folder import ModelFolder, read_model_folder
from kvtune.tokenization.encoding.prompt_encoder import PromptEncoder
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.tokenizers.vocabulary import Vocabulary


def open_prompt_encoder(
    *,
    model: Path | None = None,
    tokenizer: str | None = None,
    chat_template: str | None = None,
    content_format: Literal["auto", "string", "openai"] = "auto",
    version: str | None = None,
    workers: int | None = None,
    encoder: Literal["auto", "library"] = "auto",
    checked: bool = False,
    trusts_requests: bool = False,
    renders_only: bool = False,
    template_kwargs: Mapping[str, Any] | None = None,
    excludes_tools: bool = False,
) -> PromptEncoder:
    """The encoder that the command line's options describe.

    Args:
        model: a model folder (`--model`). tokenizer: in place of its vocabulary: a `tokenizer.json`, a folder
            with one, a `.tiktoken` file or cache folder, or `tiktoken:NAME` (`--tokenizer`).
        chat_template: the text that stands in place of the model's template (`--chat-template`).
        version: the engine's release, which decides the chat rules.
        encoder: "library": texts are encoded by the library that the vocabulary is made for, and no other.
        checked: some prompts will be encoded a second time.
        renders_only: prompts without media will be rendered and nothing encoded.
        template_kwargs: the server's `--default-chat-template-kwargs`.
        excludes_tools: the server's `--exclude-tools-when-tool-choice-none`.

    Raises:
        UnusableInputError: nothing to encode with, or one of the files cannot be used.
    """
    folder = read_model_folder(model) if model is not None else None
    if folder is None and tokenizer is None:
        raise UnusableInputError(
            "nothing says how to turn text into token ids",
            wanted="--model DIR or --tokenizer PATH",
            way_out="give a model folder with tokenizer.json and chat_template.jinja",
        )
    if folder is None and tokenizer is not None and (Path(tokenizer) / "tokenizer.json").is_file():
        folder = read_model_folder(Path(tokenizer))
    source, load = _vocabulary_loader(folder, tokenizer, workers, by_rank=encoder == "auto", checked=checked)
    return PromptEncoder(
        None if renders_only else load,
        source=source,
        templates=folder.templates if folder else None,
        chat_template=chat_template,
        content_format=content_format,
        special_tokens=folder.special_tokens if folder else None,
        media_token_ids=folder.media_token_ids if folder else None,
        media_lengths=folder.media_lengths if folder else None,
        rules=chat_rules(version),
        trusts_requests=trusts_requests,
        template_kwargs=template_kwargs,
        excludes_tools=excludes_tools,
    )


def _vocabulary_loader(
    folder: ModelFolder | None, tokenizer: str | None, workers: int | None, **how: bool
) -> tuple[str, Callable[[], Vocabulary]]:
    """Where the vocabulary comes from, and what loads it. The libraries are imported when it is loaded."""
    if tokenizer is not None and tokenizer.startswith("tiktoken:"):
        name = tokenizer.removeprefix("tiktoken:")
        if not Path(name).exists():
            return tokenizer, lambda: _tiktoken().named_encoding(name, workers=workers)
        tokenizer = name
    if tokenizer is not None:
        path = Path(tokenizer)
        if not path.exists():
            raise UnusableInputError(
                "no such file or folder",
                field="--tokenizer",
                found=tokenizer,
                wanted="a tokenizer.json, a folder with one, a .tiktoken file or tiktoken:NAME",
            )
        if path.is_dir() and (path / "tokenizer.json").is_file():
            path = path / "tokenizer.json"
    elif folder is not None and folder.vocabulary is not None:
        path = folder.vocabulary
    else:
        raise UnusableInputError(
            "no vocabulary in the model folder",
            where=str(folder.path if folder else ""),
            wanted="tokenizer.json",
            way_out="give one with --tokenizer",
        )
    if path.suffix == ".json":
        return str(path), lambda: _hugging_face(path, folder, workers, **how)
    return str(path), lambda: _tiktoken().ranks_file(path, workers=workers)


def _hugging_face(path: Path, folder: ModelFolder | None, workers: int | None, **how: bool) -> Vocabulary:
    from kvtune.tokenization.tokenizers.huggingface import HuggingFaceVocabulary

    special = folder.special_tokens if folder else {}
    return HuggingFaceVocabulary(
        path,
        add_bos_token=(folder.add_bos_token if folder else None, special.get("bos_token")),
        add_eos_token=(folder.add_eos_token if folder else None, special.get("eos_token")),
        # A tokenizer given in place of the model's brings its own.
        added_tokens=folder.added_tokens if folder and path == folder.vocabulary else None,
        workers=workers,
        **how,
    )


def _tiktoken() -> Any:
    from kvtune.tokenization.tokenizers import tiktoken_ranks

    return tiktoken_ranks
