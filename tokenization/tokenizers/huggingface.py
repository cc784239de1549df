"""Vocabularies in a `tokenizer.json`, through the library `tokenizers`.

Decides from the tokenizer's own parts where its texts may be cut. The whole-text pipeline first splits off added
tokens, then normalizes and pre-tokenizes each stretch between them on its own; so cutting at an added token is
exact as long as matching that token does not depend on its surroundings, and no part treats the first stretch
of a text in a special way. What is not known to be so is encoded whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.tokenizers.line_cuts import PATTERNS
from kvtune.tokenization.tokenizers.vocabulary import CutRules, byte_length, claimable
from kvtune.tokenization.trace import Int64, UInt32

_SAFE_NORMALIZERS = frozenset(
    {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Replace", "ByteLevel"}
)
_SAFE_PRE_TOKENIZERS = frozenset(
    {"ByteLevel", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "BertPreTokenizer"}
    | {"CharDelimiterSplit", "UnicodeScripts", "FixedLength"}
)
_UNKNOWN_BYTES = -1


class HuggingFaceVocabulary:
    """A `Vocabulary` over one `tokenizers.Tokenizer`, which the library's own threads share."""

    kind: Literal["hf", "tiktoken"] = "hf"

    def __init__(
        self,
        path: Path,
        *,
        add_bos_token: tuple[bool | None, str | None] = (None, None),
        add_eos_token: tuple[bool | None, str | None] = (None, None),
        added_tokens: Mapping[str, Any] | None = None,
        workers: int | None = None,
    ) -> None:
        """Load `path`.

        Args:
            added_tokens: `added_tokens_decoder` of `tokenizer_config.json`; tokens of it that the file lacks are
                added in the order of their ids, as the engine's tokenizer does.
            add_bos_token, add_eos_token: the flag of the same name in `tokenizer_config.json`, which overrules
                the file's post-processor, and the token's text.
            workers: threads for encoding, at most one a core; the library reads the number when it first encodes in
                parallel.

        Raises:
            UnusableInputError: the file is missing or no tokenizer.
        """
        if workers is not None:
            os.environ["RAYON_NUM_THREADS"] = str(min(workers, os.cpu_count() or 1))
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
        _add_missing(tokenizer, added_tokens or {})
        self._tokenizer = tokenizer
        self.source = str(path)
        added = tokenizer.get_added_tokens_decoder()
        self.size = max(tokenizer.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
        self.special_tokens = {token.content: number for number, token in added.items()}
        parts = {
            name: _state(getattr(tokenizer, name))
            for name in ("normalizer", "pre_tokenizer", "post_processor")
        }
        self.cuts = cut_rules(added, parts["normalizer"], parts["pre_tokenizer"])
        self.affixes = self._affixes(parts["post_processor"], add_bos_token, add_eos_token)
        self._byte_level = _is_byte_level(parts["pre_tokenizer"])
        self._bytes = np.full(self.size, _UNKNOWN_BYTES, dtype=np.int32)

    def encode(self, texts: Sequence[str]) -> list[UInt32]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def encode_with_affixes(self, texts: Sequence[str]) -> list[UInt32]:
        if self.affixes is not None:
            before, after = self.affixes
            return [np.concatenate((before, ids, after)) for ids in self.encode(texts)]
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=True)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        known = [number for number in ids if number < self.size]
        text: str = self._tokenizer.decode(known, skip_special_tokens=False)
        return text

    def token_ends(self, texts: Sequence[str], ids: Sequence[UInt32]) -> list[Int64]:
        if not self._byte_level:
            return [self._asked_ends(text) for text in texts]
        every = np.concatenate(ids) if ids else np.zeros(0, dtype=np.uint32)
        ends = np.cumsum(self._token_bytes(every), dtype=np.int64)
        found: list[Int64] = []
        start = before = 0
        for text, one in zip(texts, ids, strict=True):
            own = ends[start : start + len(one)]
            last = int(own[-1]) if len(own) else before
            # A normalizer may have changed the text: its tokens are not its bytes then.
            same = last - before == byte_length(text)
            found.append(own - before if same else self._asked_ends(text))
            start, before = start + len(one), last
        return found

    def _asked_ends(self, text: str) -> Int64:
        """Where the library says that tokens end; slow."""
        starts_at = _byte_positions(text)
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return starts_at[np.array([end for _, end in offsets], dtype=np.int64)]

    def _token_bytes(self, ids: UInt32) -> np.ndarray[Any, np.dtype[np.int32]]:
        known = self._bytes[ids]
        if (known == _UNKNOWN_BYTES).any():
            for number in np.unique(ids[known == _UNKNOWN_BYTES]).tolist():
                token = self._tokenizer.id_to_token(number) or ""
                # A byte-level token has one character per byte; an added token stands as itself.
                size = len(token.encode("utf-8")) if token in self.special_tokens else len(token)
                self._bytes[number] = size
            known = self._bytes[ids]
        return known

    def _affixes(
        self,
        post_processor: Mapping[str, Any] | None,
        add_bos_token: tuple[bool | None, str | None],
        add_eos_token: tuple[bool | None, str | None],
    ) -> tuple[UInt32, UInt32] | None:
        found = _template_affixes(post_processor)
        if found is None:
            return None
        sides: list[UInt32] = []
        for ids, (flag, token) in zip(found, (add_bos_token, add_eos_token), strict=True):
            if flag is False or (flag is True and token is None):
                ids = []
            elif flag is True and token is not None:
                number = self._tokenizer.token_to_id(token)
                ids = ids if number is None else [number]
            sides.append(np.array(ids, dtype=np.uint32))
        return sides[0], sides[1]


def _add_missing(tokenizer: Any, added_tokens: Mapping[str, Any]) -> None:
    from tokenizers import AddedToken

    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    numbered = [(int(number), token) for number, token in added_tokens.items() if number.isdecimal()]
    for _, token in sorted(numbered, key=lambda pair: pair[0]):
        content = token.get("content") if isinstance(token, dict) else None
        if isinstance(content, str) and content and content not in known:
            tokenizer.add_tokens([AddedToken(content, **{name: bool(token.get(name)) for name in flags})])


def cut_rules(
    added: Mapping[int, Any], normalizer: Mapping[str, Any] | None, pre_tokenizer: Mapping[str, Any] | None
) -> CutRules:
    """Where texts of a tokenizer with these parts may be cut.

    Args:
        added: id -> added token, with `content`, `single_word`, `lstrip`, `rstrip`, `normalized`.
        normalizer, pre_tokenizer: as `tokenizer.json` describes them.
    """
    for part in _flat(normalizer):
        if part["type"] not in _SAFE_NORMALIZERS:
            return CutRules(why_whole=f"normalizer {part['type']}")
    for part in _flat(pre_tokenizer):
        prefix = part.get("add_prefix_space") or part.get("prepend_scheme", "never") != "never"
        if part["type"] not in _SAFE_PRE_TOKENIZERS | {"Metaspace"} or prefix:
            return CutRules(why_whole=f"pre-tokenizer {part['type']}" + (" with a prefix" if prefix else ""))
    if any(token.single_word for token in added.values()):
        return CutRules(why_whole="a special token that must stand alone as a word")
    claimed = claimable([token.content for token in added.values() if token.content])
    tokens = {
        token.content: number
        for number, token in added.items()
        if token.content
        and not (token.normalized or token.lstrip or token.rstrip)
        and token.content not in claimed
    }
    if not tokens:
        return CutRules(why_whole="no special token that stands for itself in every surrounding")
    # A token that takes whitespace beside it with it could take the newline at which a line ends.
    strips = any(token.lstrip or token.rstrip or "\n" in token.content for token in added.values())
    normal = all(part["type"] in ("NFC", "NFD", "NFKC", "NFKD") for part in _flat(normalizer))
    return CutRules(tokens=tokens, lines=normal and not strips and _splits_at_lines(pre_tokenizer))


def _splits_at_lines(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    """Whether words come from one of the patterns for which a cut after a newline is exact."""
    parts = _flat(pre_tokenizer)
    if [part["type"] for part in parts] != ["Split", "ByteLevel"]:
        return False
    split, byte_level = parts
    return (
        split["pattern"].get("Regex") in PATTERNS
        and split["behavior"] == "Isolated"
        and not split["invert"]
        and not byte_level["use_regex"]
    )


def _template_affixes(post_processor: Mapping[str, Any] | None) -> tuple[list[int], list[int]] | None:
    """Ids that a post-processor puts before and after a single text, None where it is of an unknown kind."""
    before: list[int] = []
    after: list[int] = []
    for part in _flat(post_processor):
        if part["type"] == "ByteLevel":
            continue
        if part["type"] != "TemplateProcessing":
            return None
        inner_before: list[int] = []
        side = inner_before
        for item in part["single"]:
            if "Sequence" in item:
                side = after
            else:
                side.extend(part["special_tokens"][item["SpecialToken"]["id"]]["ids"])
        before = inner_before + before
    return before, after


def _flat(part: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The members of a part, sequences opened."""
    if part is None:
        return []
    if part.get("type") != "Sequence":
        return [part]
    members = part.get("normalizers") or part.get("pretokenizers") or part.get("processors") or []
    return [inner for member in members for inner in _flat(member)]


def _state(part: Any) -> Mapping[str, Any] | None:
    """A part's description, in the terms of `tokenizer.json`."""
    if part is None:
        return None
    state: Mapping[str, Any] = json.loads(part.__getstate__())
    return state


def _is_byte_level(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    return any(part["type"] == "ByteLevel" for part in _flat(pre_tokenizer))


def _byte_positions(text: str) -> Int64:
    """Byte position of every character, and of the end: int64[len(text) + 1]."""
    sizes = np.fromiter(
        (len(character.encode("utf-8")) for character in text), dtype=np.int64, count=len(text)
    )
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
