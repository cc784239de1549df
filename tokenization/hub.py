"""A model's name to its folder: a folder as it is, a hub id from the local cache or, where it is reachable, the hub.

Only small files are fetched: configuration, tokenizer, chat templates; never weights. Knows names and folders; what
is in a folder is `kvtune.tokenization.encoding.model_folder`'s business.
"""

from __future__ import annotations

import re
from pathlib import Path

from kvtune.tokenization.errors import UnusableInputError

SMALL_FILES = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "*.tiktoken",
    "tiktoken.model",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
]
WAYS_OUT = "give a model folder with --model DIR, or a tokenizer with --tokenizer"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_TIMEOUT_S = 5.0


def is_hub_id(name: str) -> bool:
    """Whether a name has the form OWNER/NAME of a model on the hub."""
    return len(name) <= 96 and _HUB_ID.fullmatch(name) is not None and ".." not in name


def find_model(name: str) -> Path:
    """The folder of a model that was named by the user or by a trace.

    Raises:
        UnusableInputError: neither a folder nor a hub id, or the hub does not give it.
    """
    path = Path(name)
    if path.is_dir():
        return path
    if not is_hub_id(name):
        raise UnusableInputError(
            "is neither a folder nor a model on the hub",
            field="--model",
            found=repr(name[:96]),
            way_out=WAYS_OUT,
        )
    return _snapshot(name)


def _snapshot(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=SMALL_FILES, local_files_only=True))
    except OSError:
        pass  # not in the local cache
    try:
        return Path(snapshot_download(name, allow_patterns=SMALL_FILES, etag_timeout=_TIMEOUT_S))
    except Exception as error:  # the client lets its transport's own errors through
        raise UnusableInputError(
            f"the hub does not give this model: {type(error).__name__}",
            field="--model",
            found=name,
            way_out=WAYS_OUT,
        ) from error
