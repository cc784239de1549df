"""What the parts of a `tokenizer.json` say: where its texts may be cut, and which pattern splits them into words.

The whole-text pipeline first splits off added tokens, then normalizes and pre-tokenizes each stretch between them on
its own; so cutting at an added token is exact as long as matching that token does not depend on its surroundings, and
no part treats the first stretch of a text in a special way. What is not known to be so is encoded whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvtune.tokenization.tokenizers.line_cuts import PATTERNS
from kvtune.tokenization.tokenizers.vocabulary import CutRules, claimable

_SAFE_NORMALIZERS = frozenset(
    {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Replace", "ByteLevel"}
)
_SAFE_PRE_TOKENIZERS = frozenset(
    {"ByteLevel", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "BertPreTokenizer"}
    | {"CharDelimiterSplit", "UnicodeScripts", "FixedLength"}
)


def cut_rules(
    added: Mapping[int, Any], normalizer: Mapping[str, Any] | None, pre_tokenizer: Mapping[str, Any] | None
) -> CutRules:
    """Where texts of a tokenizer with these parts may be cut.

    Args:
        added: id -> added token, with `content`, `single_word`, `lstrip`, `rstrip`, `normalized`.
        normalizer, pre_tokenizer: as `tokenizer.json` describes them.
    """
    for part in flat(normalizer):
        if part["type"] not in _SAFE_NORMALIZERS:
            return CutRules(why_whole=f"normalizer {part['type']}")
    for part in flat(pre_tokenizer):
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
    normal = all(part["type"] in ("NFC", "NFD", "NFKC", "NFKD") for part in flat(normalizer))
    return CutRules(tokens=tokens, lines=normal and not strips and known_pattern(pre_tokenizer) is not None)


def known_pattern(pre_tokenizer: Mapping[str, Any] | None) -> str | None:
    """The pattern that alone makes words, where it is one for which a cut after a newline is exact; else None."""
    parts = flat(pre_tokenizer)
    if [part["type"] for part in parts] != ["Split", "ByteLevel"]:
        return None
    split, byte_level = parts
    pattern: str | None = split["pattern"].get("Regex")
    is_plain = (
        pattern in PATTERNS
        and split["behavior"] == "Isolated"
        and not split["invert"]
        and not byte_level["use_regex"]
        and not byte_level["add_prefix_space"]
    )
    return pattern if is_plain else None


def flat(part: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The members of a part, sequences opened."""
    if part is None:
        return []
    if part.get("type") != "Sequence":
        return [part]
    members = part.get("normalizers") or part.get("pretokenizers") or part.get("processors") or []
    return [inner for member in members for inner in flat(member)]
