"""A model folder in a hub's layout: what of it decides the way from a request to token ids.

Reads `tokenizer_config.json`, `special_tokens_map.json`, `chat_template.jinja`, `chat_template.json`,
`additional_chat_templates/*.jinja` and the token ids of media in `config.json`; finds the vocabulary's file.
Sizes in `config.json` are read elsewhere. Knows no requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvtune.tokenization.encoding.media_lengths import MediaLengths, media_lengths
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.small_file import read_small_file

SPECIAL_TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_MAX_JSON_BYTES = 1 << 26
_MEDIA_KEYS = {
    "image": ("image_token_id", "image_token_index", "media_placeholder_token_id"),
    "video": ("video_token_id", "video_token_index"),
    "audio": ("audio_token_id", "audio_token_index"),
}


@dataclass(frozen=True)
class ChatTemplates:
    """The chat templates of a model by name, as a tokenizer and a processor may bring them.

    Attributes:
        named: "default", "tool_use", ... -> Jinja text.
        processor: a processor's own template, which goes first for requests without tools.
    """

    named: Mapping[str, str] = field(default_factory=dict)
    processor: str | None = None

    def choose(self, given: str | None, *, has_tools: bool) -> tuple[str, str] | None:
        """(name, source) of the template for a request; None where the model has none.

        `given` is a template from the request or the command line, or the name of one of the model's.
        """
        if given is not None:
            named = self.named.get(given)
            return (given, named) if named is not None else ("given", given)
        if self.processor is not None and not has_tools:
            return "processor", self.processor
        name = "tool_use" if has_tools and "tool_use" in self.named else "default"
        source = self.named.get(name)
        return None if source is None else (name, source)


@dataclass(frozen=True)
class ModelFolder:
    """Attributes:
    path: the folder.
    templates: its chat templates.
    special_tokens: names such as "bos_token" -> text, as templates see them; `additional_special_tokens` is a
        list.
    add_bos_token, add_eos_token: the flags of `tokenizer_config.json`, None where it has none.
    added_tokens: `added_tokens_decoder` of `tokenizer_config.json`: id -> token.
    media_token_ids: modality -> id of the placeholder token, where `config.json` says.
    media_lengths: tokens of an image, where the model's processor is known.
    vocabulary: `tokenizer.json`, or a file of ranks.
    """

    path: Path
    templates: ChatTemplates
    special_tokens: Mapping[str, Any]
    add_bos_token: bool | None
    add_eos_token: bool | None
    added_tokens: Mapping[str, Any]
    media_token_ids: Mapping[str, int]
    media_lengths: MediaLengths | None
    vocabulary: Path | None


def read_model_folder(path: Path) -> ModelFolder:
    """Read the folder's small files.

    Raises:
        UnusableInputError: no folder, or one of its files is no JSON object or too large.
    """
    if not path.is_dir():
        raise UnusableInputError(
            "no such model folder",
            field="--model",
            found=str(path),
            wanted="a folder with tokenizer.json and chat_template.jinja",
        )
    config = read_json_object(path / "tokenizer_config.json")
    special = {**read_json_object(path / "special_tokens_map.json"), **config}
    flags = [config.get(name) for name in ("add_bos_token", "add_eos_token")]
    sizes = read_json_object(path / "config.json")
    return ModelFolder(
        path=path,
        templates=_templates(path, config),
        special_tokens=_special_tokens(special),
        add_bos_token=flags[0] if isinstance(flags[0], bool) else None,
        add_eos_token=flags[1] if isinstance(flags[1], bool) else None,
        added_tokens=added if isinstance(added := config.get("added_tokens_decoder"), dict) else {},
        media_token_ids=_media_token_ids(sizes),
        media_lengths=media_lengths(sizes, read_json_object(path / "preprocessor_config.json")),
        vocabulary=_vocabulary_file(path),
    )


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a small JSON file; {} where there is no such file.

    Raises:
        UnusableInputError: no JSON object, or larger than 64 MiB.
    """
    if not path.exists():
        return {}
    data = read_small_file(path, _MAX_JSON_BYTES, "a JSON object")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnusableInputError("not JSON", where=str(path), wanted="a JSON object") from error
    if not isinstance(value, dict):
        raise UnusableInputError(
            "not a JSON object", where=str(path), found=type(value).__name__, wanted="a JSON object"
        )
    return value


def read_template(path: Path) -> str:
    """A template's text.

    Raises:
        UnusableInputError: missing, unreadable or not UTF-8.
    """
    data = read_small_file(path, _MAX_JSON_BYTES, "a Jinja chat template")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UnusableInputError("not UTF-8 text", where=str(path), wanted="a Jinja chat template") from error


def _templates(path: Path, config: Mapping[str, Any]) -> ChatTemplates:
    named: dict[str, str] = {}
    inline = config.get("chat_template")
    if isinstance(inline, str):
        named["default"] = inline
    elif isinstance(inline, list):
        for entry in inline:
            if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                named[str(entry.get("name"))] = entry["template"]
    if (path / "chat_template.jinja").is_file():
        # Files win over what the configuration holds, all of it.
        named = {"default": read_template(path / "chat_template.jinja")}
        for file in sorted((path / "additional_chat_templates").glob("*.jinja")):
            named[file.stem] = read_template(file)
        return ChatTemplates(named)
    processor = read_json_object(path / "chat_template.json").get("chat_template")
    return ChatTemplates(named, processor if isinstance(processor, str) else None)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    tokens: dict[str, Any] = {}
    for name in SPECIAL_TOKEN_NAMES:
        text = _token_text(config.get(name))
        if text is not None:
            tokens[name] = text
    more = config.get("additional_special_tokens")
    if isinstance(more, list):
        tokens["additional_special_tokens"] = [
            text for item in more if (text := _token_text(item)) is not None
        ]
    return tokens


def _token_text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _media_token_ids(config: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for modality, keys in _MEDIA_KEYS.items():
        for key in keys:
            if isinstance(config.get(key), int):
                found.setdefault(modality, config[key])
    return found


def _vocabulary_file(path: Path) -> Path | None:
    if (path / "tokenizer.json").is_file():
        return path / "tokenizer.json"
    ranks = sorted(path.glob("*.tiktoken"))
    return ranks[0] if len(ranks) == 1 else None
