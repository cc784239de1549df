"""A model folder for tests: ten special tokens, one token a byte else, and any chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from kvtune.tokenization.encode import EncodeInfo, encode_trace
from kvtune.tokenization.encoding.open_encoder import open_prompt_encoder
from kvtune.tokenization.encoding.prompt_encoder import PromptEncoder
from kvtune.tokenization.request import Request
from kvtune.tokenization.trace import TokenTrace

SPECIALS = (
    "<s>",
    "</s>",
    "<|turn|>",
    "<|end|>",
    "<|image|>",
    "<|audio|>",
    "<|think|>",
    "<|call|>",
    "<x>",
    "<y>",
)
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}

ID = {token: 256 + number for number, token in enumerate(SPECIALS)}

TEMPLATE = (
    "{{ bos_token }}{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for message in messages %}<|turn|>{{ message.role }}\n"
    "{% for part in message.content %}"
    "{{ part if part is string else '<|image|>' if part.type == 'image' else part.text }}{% endfor %}"
    "{% for call in message.tool_calls or [] %}<|call|>{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
STRINGS = (
    TEMPLATE[: TEMPLATE.index("{% for part")]
    + "{{ message.content }}"
    + TEMPLATE[TEMPLATE.index("{% for call") :]
)


def write_model(folder: Path, template: str | None = TEMPLATE, *, bos: bool = False, **config: Any) -> Path:
    """The folder; `bos` puts a BOS before completions, `config` goes into `tokenizer_config.json`."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", ID["<s>"])]
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": {"content": "<|end|>"}, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def encoder_of(
    folder: Path, template: str | None = TEMPLATE, *, bos: bool = False, **options: Any
) -> PromptEncoder:
    """An encoder of such a model."""
    return open_prompt_encoder(model=write_model(folder, template, bos=bos), **options)


def text_ids(text: str) -> list[int]:
    """Ids of an ASCII text: a token a byte, special tokens whole."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids: list[int] = []
    while text:
        special = next((token for token in SPECIALS if text.startswith(token)), None)
        if special is not None:
            ids.append(ID[special])
            text = text[len(special) :]
        else:
            letter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(
                text[0]
            )
            ids.append(letters.index(letter[0][0]))
            text = text[1:]
    return ids


def chat(*turns: str, **fields: Any) -> Request:
    """A chat of user, assistant, user, ... turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": turn} for number, turn in enumerate(turns)]
    return Request(**{"id": "r", "messages": messages, "source": "t.jsonl:1", **fields})


def rejected_of(
    requests: list[Request], encoder: Any, **options: Any
) -> tuple[TokenTrace, EncodeInfo, list[Any]]:
    """The trace, what is known of it, and the arguments of every `on_reject`."""
    rejected: list[Any] = []
    trace, info = encode_trace(
        requests, encoder, on_reject=lambda *reject: rejected.append(reject), **options
    )
    return trace, info, rejected
